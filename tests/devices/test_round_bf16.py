"""RoundBF16 against its rule in exact arithmetic."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices.running import const, run
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import DTypeMismatch, ShapeMismatch
from ostinato.ir import Graph
from ostinato.ir.ops.quantize import RoundBF16
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry

DEVICES = Registry()
DEVICES.register(ReferenceDevice())
DEVICES.register(CpuDevice())
KINDS = ("reference", "cpu")
CONTEXTS = {kind: InferenceContext(kind, DEVICES) for kind in KINDS}
LARGEST = 0x7F7F
"""The bits of the largest finite bfloat16."""


def value_of(bits: int) -> Fraction:
    """A finite bfloat16 without its sign; what follows the largest stands for infinity."""
    exponent, fraction = divmod(bits, 128)
    return Fraction(fraction + (128 if exponent else 0)) * Fraction(2) ** (max(exponent, 1) - 127 - 7)


def by_the_rule(x: float) -> int:
    """The nearest bfloat16's bits, of two that are equally near the even one."""
    size = abs(Fraction(x))
    low, high = 0, LARGEST + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if value_of(middle) <= size else (low, middle)
    below, above = size - value_of(low), value_of(high) - size
    nearest = min((below, low % 2, low), (above, high % 2, high))[2]
    return nearest | (0x8000 if struct.pack(">f", x)[0] & 0x80 else 0)


def rounded(kind: str, x: np.ndarray) -> np.ndarray:
    """The upper halves of what the device makes of `[1, K]`; the lower halves are zeros."""
    data = const(Graph(), x)
    found = run(CONTEXTS[kind], data[0].apply(RoundBF16()), data)
    bits = found.view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return (bits >> 16)[0]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=50)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=40))
def test_the_nearest_bfloat16_half_to_even(kind: str, values: list[float]) -> None:
    x = np.array([values], np.float32)
    assert rounded(kind, x).tolist() == [by_the_rule(value) for value in values]


@pytest.mark.parametrize("kind", KINDS)
def test_ties_zeros_and_what_is_no_number(kind: str) -> None:
    bits = [0x3F808000, 0x3F818000, 0x3F808001, 0x80000000, 0x00008000, 0x00018000, 0x7F7F8000, 0xFF800000]
    bits += [0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF]
    found = rounded(kind, np.array([bits], np.uint32).view(np.float32)).tolist()
    assert found[:8] == [0x3F80, 0x3F82, 0x3F81, 0x8000, 0x0000, 0x0002, 0x7F80, 0xFF80]
    assert np.isnan((np.array(found[8:], np.uint32) << 16).view(np.float32)).all()


def test_it_takes_rows_of_floats() -> None:
    with pytest.raises(DTypeMismatch):
        const(Graph(), np.zeros((2, 4), np.int64))[0].apply(RoundBF16())
    with pytest.raises(ShapeMismatch):
        const(Graph(), np.zeros((), np.float32))[0].apply(RoundBF16())
