"""Products with packed weights, against float64; every row has the bits that it has alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, at_page_end
from devices.cpu.weighing import SCALES, decoded, encoded, packed, quantised, rows_of
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.pack import Pack
from ostinato.devices.cpu.kernels.product import Product
from ostinato.devices.cpu.kernels.rows import INT8, PrepareRows, RowSpec
from ostinato.devices.cpu.weights import FORMS
from ostinato.devices.reference.kernels import rounded_to_bf16
from ostinato.ir import encoding as e

Shape = tuple[str, int, int]
"""Form, rows of the weight, their elements."""

ROWS = 33
BLOCKS = [name for name, form in FORMS.items() if form.source.block == 32]
SUPERS = [name for name, form in FORMS.items() if form.source.block == 256]
SHAPES = [
    *((form, 17, k) for form in ("q4_0.r16", "q4_1.r16", "q8_0.r16") for k in (32, 64, 160)),
    *((form, 17, k) for form in BLOCKS for k in (96, 576)),
    *((form, 17, k) for form in ("f16.r16", "bf16.k2.r16", "f32.r16") for k in (1, 7, 20, 64)),
    *((form, 17, k) for form in SUPERS for k in (256, 1024)),
    *((form, n, 96) for form in ("q4_1.r16", "f16.r16") for n in (1, 15, 16, 40)),
]
FEW = [shape for shape in SHAPES if shape[2] in (7, 96, 256)]
"""What the sets other than the best one are tested with: compiling for them takes longest."""
CASES = [(isa, shape) for isa in HOST_ISAS for shape in (SHAPES if isa is HOST_ISAS[0] else FEW)]


def is_quick(isa: Isa, shape: Shape) -> bool:
    """By default every form runs on every set; on the best one with every remainder of rows and columns, with
    many super-blocks, and with many blocks of one form of each kind."""
    form, n, k = shape
    if isa is not HOST_ISAS[0]:
        return n in (17, 40)
    return k != 576 or form in ("q4_1.r16", "q8_0.r16")


BY_CASE = pytest.mark.parametrize(
    ("isa", "shape"),
    [
        pytest.param(
            *case, marks=[] if is_quick(*case) else [pytest.mark.slow], id=f"{case[0].name}-{case[1]}"
        )
        for case in CASES
    ],
)
BOUND = 1e-6
"""Of sum |w·x|: sums of up to 576 terms in f32, each rounded to 6e-8, in at most 18 · 2 steps."""


def kernels_of(isa: Isa, shape: Shape) -> tuple[Product, Product, PrepareRows, Pack]:
    form, n, k = shape
    spec = RowSpec(k, rounding=FORMS[form].rounding(isa), sums=FORMS[form].sums)
    one = Product(form, k, n, prepare=spec)
    many = Product(form, k, n, many=True)
    return one, many, PrepareRows(spec, x_stride=k), Pack(FORMS[form].source.name, k)


@cache
def kernels_for(isa: Isa) -> Kernels:
    return Kernels(isa, [kernel for each, shape in CASES if each is isa for kernel in kernels_of(isa, shape)])


def stands_for(isa: Isa, form: str, x: np.ndarray) -> np.ndarray:
    """The activations that the form's products really have, float64."""
    rounding = FORMS[form].rounding(isa)
    if rounding == INT8:
        return quantised(x)
    return (x if rounding is None else rounded_to_bf16(x)).astype(np.float64)


@BY_CASE
def test_products_are_exact_within_rounding(isa: Isa, shape: Shape) -> None:
    kernels = kernels_for(isa)
    form, n, k = shape
    one, _, _, pack = kernels_of(isa, shape)
    raw = encoded(FORMS[form].source, n, k)
    weight = packed(kernels, pack, raw)
    w = decoded(FORMS[form].source, raw).astype(np.float64)
    for row in rows_of(4, k):
        out = at_page_end(np.full(n, np.nan, np.float32))
        kernels.run(one, [at_page_end(row), weight, out], 0, one.items)
        x = stands_for(isa, form, row)
        assert (np.abs(out - w @ x) <= BOUND * (np.abs(w) @ np.abs(x))).all()


@BY_CASE
def test_rows_have_the_same_bits_alone_and_together(isa: Isa, shape: Shape) -> None:
    kernels = kernels_for(isa)
    form, n, k = shape
    one, many, prepare, pack = kernels_of(isa, shape)
    weight = packed(kernels, pack, encoded(FORMS[form].source, n, k))
    x = rows_of(ROWS, k)
    alone = np.zeros((ROWS, n), np.float32)
    for row, out in zip(x, alone, strict=True):
        kernels.run(one, [row, weight, out], 0, one.items)
    prepared = np.zeros((ROWS, many.row_bytes(isa)), np.uint8)
    kernels.run(prepare, [x, prepared], 0, ROWS)
    for count in range(ROWS + 1):
        rows = at_page_end(prepared[:count]) if count else prepared
        out = np.full((ROWS, n), np.nan, np.float32)
        kernels.run(many, [rows, weight, out, np.array([count])], 0, many.items)
        assert (out[:count].view(np.uint32) == alone[:count].view(np.uint32)).all()
        assert np.isnan(out[count:]).all()


@pytest.mark.parametrize(
    ("isa", "shape"),
    [
        case
        for case in CASES
        if case[1][2] in (96, 256) and case[1][1] == 17 and FORMS[case[1][0]].source.block > 1
    ],
    ids=lambda x: x.name if isinstance(x, Isa) else str(x),
)
def test_the_largest_quants_under_the_largest_scales_do_not_overflow(isa: Isa, shape: Shape) -> None:
    kernels = kernels_for(isa)
    form, n, k = shape
    one, _, _, pack = kernels_of(isa, shape)
    source = FORMS[form].source
    bytes_ = np.resize(np.array([0x00, 0xFF, 0x80, 0x7F, 0x0F, 0xF0], np.uint8), n)
    raw = np.repeat(bytes_[:, None], source.row_bytes(k), 1).reshape(n, -1, source.block_bytes)
    for at in SCALES.get(source, ()):
        raw[:, :, at : at + 2] = np.array([1.0], "<f2").view(np.uint8)
    if source == e.MXFP4:
        raw[:, :, 0] = 128
    weight = packed(kernels, pack, raw.reshape(n, -1))
    w = decoded(source, raw.reshape(n, -1)).astype(np.float64)
    for period in (1, 2, 16, 32, 512):
        row = np.where(np.arange(k) // period % 2, -1, 1).astype(np.float32)
        for x in (row, -row):
            out = np.full(n, np.nan, np.float32)
            kernels.run(one, [x, weight, out], 0, one.items)
            q = quantised(x)
            assert (np.abs(out - w @ q) <= BOUND * (np.abs(w) @ np.abs(q))).all()


@pytest.mark.parametrize("isa", HOST_ISAS, ids=lambda isa: isa.name)
@pytest.mark.parametrize("shape", [("q4_1.r16", 40, 96), ("f16.r16", 40, 96)], ids=str)
def test_a_range_of_items_writes_its_own_outputs(isa: Isa, shape: Shape) -> None:
    kernels = kernels_for(isa)
    form, n, k = shape
    one, many, prepare, pack = kernels_of(isa, shape)
    weight = packed(kernels, pack, encoded(FORMS[form].source, n, k))
    x = rows_of(11, k)
    prepared = np.zeros((11, many.row_bytes(isa)), np.uint8)
    kernels.run(prepare, [x, prepared], 0, 11)
    whole = np.zeros((11, n), np.float32)
    kernels.run(many, [prepared, weight, whole, np.array([11])], 0, 3)
    for low, high in ((0, 0), (0, 1), (1, 2), (2, 3), (1, 3)):
        mine = slice(16 * low, min(16 * high, n))
        for kernel, args, rows in ((one, [x[0]], 1), (many, [prepared], 11)):
            out = np.full((rows, n), np.nan, np.float32)
            count = [np.array([rows])] if kernel.many else []
            kernels.run(kernel, [*args, weight, out, *count], low, high)
            assert (out[:, mine] == whole[:rows, mine]).all()
            out[:, mine] = np.nan
            assert np.isnan(out).all()


def test_names_of_kernels_differ_with_every_field() -> None:
    base = Product("q4_1.r16", 96, 32)
    others = [
        replace(base, **change)
        for change in (
            {"form": "q4_0.r16"},
            {"k": 64},
            {"n": 64},
            {"prepare": RowSpec(96)},
            {"activation": "silu"},
            {"gated": True},
            {"bias": True},
            {"residual": True},
            {"many": True},
        )
    ]
    assert len({kernel.symbol for kernel in (base, *others)}) == 10
