"""Which tensors take another encoding: one rule, two policies."""

from __future__ import annotations

import pytest

from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding
from ostinato.models.recode import Recode, recoded

CASES: list[tuple[Encoding, tuple[int, ...], Encoding | None, Encoding, Encoding]] = [
    # stored, shape, wanted → what floats alone become, what all become
    (enc.F32, (4, 64), enc.Q8_0, enc.Q8_0, enc.Q8_0),
    (enc.F16, (4, 64), enc.Q4_0, enc.Q4_0, enc.Q4_0),
    (enc.BF16, (4, 64), enc.F16, enc.F16, enc.F16),
    (enc.Q4_0, (4, 64), enc.Q8_0, enc.Q4_0, enc.Q8_0),
    (enc.Q4_0, (4, 64), enc.F32, enc.Q4_0, enc.F32),
    (enc.Q8_0, (4, 64), enc.Q8_0, enc.Q8_0, enc.Q8_0),
    (enc.F32, (4, 48), enc.Q8_0, enc.F32, enc.F32),
    (enc.F32, (64,), enc.Q8_0, enc.F32, enc.F32),
    (enc.F32, (64,), enc.F16, enc.F32, enc.F32),
    (enc.Q4_0, (4, 64), None, enc.Q4_0, enc.Q4_0),
]


@pytest.mark.parametrize(("stored", "shape", "wanted", "floats", "everything"), CASES)
def test_recoded(
    stored: Encoding, shape: tuple[int, ...], wanted: Encoding | None, floats: Encoding, everything: Encoding
) -> None:
    assert recoded(stored, shape, wanted, Recode.FLOATS) == floats
    assert recoded(stored, shape, wanted, Recode.ALL) == everything
