"""Which of a model's tensors take another encoding."""

from __future__ import annotations

from enum import Enum

from ostinato.ir.encoding import Encoding


class Recode(Enum):
    """What an encoding that someone asks for applies to."""

    FLOATS = "floats"
    """Matrices that the files hold as floats: what is quantised already isn't rounded a second time."""
    ALL = "all"
    """Every matrix, decoded first where it must be."""


def recoded(stored: Encoding, shape: tuple[int, ...], wanted: Encoding | None, policy: Recode) -> Encoding:
    """What a tensor becomes: `wanted` for matrices whose rows are whole blocks of it and that the policy
    covers, `stored` for all others."""
    if wanted is None or len(shape) != 2 or shape[-1] % wanted.block:
        return stored
    return wanted if policy is Recode.ALL or stored.is_plain else stored
