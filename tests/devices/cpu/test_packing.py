"""Packing loses nothing: every row that is read back from the packed bytes is what the codec decodes."""

from __future__ import annotations

import hashlib
import random
from functools import cache

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned, at_page_end
from devices.cpu.weighing import SCALES, addresses, decoded, encoded, packed
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.embed import Embed
from ostinato.devices.cpu.kernels.pack import Pack
from ostinato.devices.cpu.packing import PACKING
from ostinato.devices.cpu.weights import FORMS, GROUP, PACKED, STORED
from ostinato.formats.encodings import CODECS
from ostinato.ir import encoding as e
from ostinato.ir.encoding import Encoding

ENCODINGS = tuple(form.source for form in FORMS.values())
N = 40  # two groups, and half of one


def sizes(encoding: Encoding) -> list[int]:
    """Numbers of blocks odd and even, one of them long enough to be packed in several spans."""
    if encoding.block == 256:
        return [256, 768]
    return [1, 7, 20, 64] if encoding.is_plain else [32, 64, 96, 160, 576, 1056]


def some(encoding: Encoding) -> int:
    """One of them."""
    return 20 if encoding.is_plain else 768 if encoding.block == 256 else 96


CASES = [(encoding, k) for encoding in ENCODINGS for k in sizes(encoding)]
KERNELS = {each: (Pack(each[0].name, each[1]), Embed(PACKED[each[0]].name, N, each[1])) for each in CASES}


BY_CASE = pytest.mark.parametrize(
    ("kernels", "case"),
    [
        pytest.param(
            isa, case, id=f"{isa.name}-{case[0]}-{case[1]}",
            marks=[] if isa is HOST_ISAS[0] or case[1] == some(case[0]) else [pytest.mark.slow],
        )
        for isa in HOST_ISAS for case in CASES
    ],
    indirect=["kernels"],
)  # fmt: skip
"""By default every size on the best set, on the others one of each encoding."""


@cache
def kernels_for(isa: Isa) -> Kernels:
    return Kernels(isa, [kernel for both in KERNELS.values() for kernel in both])


@pytest.fixture(params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return kernels_for(request.param)


def unpacked(kernels: Kernels, case: tuple[Encoding, int], weight: np.ndarray, rows: int) -> np.ndarray:
    """All rows of a packed weight, each before a guarded page."""
    out = at_page_end(np.full((rows, case[1]), np.nan, np.float32))
    embed = KERNELS[case][1]
    kernels.run(embed, [np.arange(rows), weight, out, np.zeros(3, np.int64), 1], 0, rows)
    return out


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a.view(np.uint32) == b.view(np.uint32)).all())


@BY_CASE
def test_rows_come_back_bit_for_bit(kernels: Kernels, case: tuple[Encoding, int]) -> None:
    encoding, k = case
    raw = encoded(encoding, N, k)
    weight = packed(kernels, KERNELS[case][0], raw)
    assert len(weight) == PACKED[encoding].packed_bytes(N, k)
    assert same_bits(unpacked(kernels, case, weight, N), decoded(encoding, raw))


@pytest.mark.parametrize("encoding", [each for each in ENCODINGS if each != e.F32], ids=str)
def test_every_kind_of_scale_comes_back(kernels: Kernels, encoding: Encoding) -> None:
    case = (encoding, some(encoding))
    halves = np.array([0.0, -0.0, 1.0, -1.0, 65504.0, -65504.0, 6e-8, -6e-8, 6.1e-5, 6.103e-5, 0.1], "<f2")
    raw = encoded(encoding, N, case[1]).reshape(N, -1, encoding.block_bytes)
    if encoding in (e.F16, e.BF16):
        raw[:, : len(halves)] = halves.view(np.uint8).reshape(-1, 2)
    elif encoding == e.MXFP4:
        raw[:, :, 0] = np.array([*range(60), *range(196, 256)]).reshape(raw.shape[:2])
    else:
        for at, start in zip(SCALES[encoding], (0, 3), strict=False):
            found = np.resize(np.roll(halves, start), raw.shape[:2])
            raw[:, :, at : at + 2] = found[..., None].view(np.uint8)
    raw = raw.reshape(N, -1)
    weight = packed(kernels, KERNELS[case][0], raw)
    assert same_bits(unpacked(kernels, case, weight, N), decoded(encoding, raw))


@pytest.mark.parametrize("encoding", [e.F16, e.BF16], ids=str)
def test_every_number_of_16_bits_comes_back(kernels: Kernels, encoding: Encoding) -> None:
    case = (encoding, 64)
    for start in range(0, 1 << 16, N * 64):
        numbers = np.arange(start, start + N * 64).astype("<u2").reshape(N, 64)
        expected = decoded(encoding, numbers.view(np.uint8))
        found = unpacked(kernels, case, packed(kernels, KERNELS[case][0], numbers.view(np.uint8)), N)
        assert same_bits(found[~np.isnan(expected)], expected[~np.isnan(expected)])
        assert np.isnan(found[np.isnan(expected)]).all()


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_a_table_joins_and_orders_rows(kernels: Kernels, encoding: Encoding) -> None:
    """Any rows in any order, one twice, rows of zeros between; sources at odd addresses."""
    case = (encoding, some(encoding))
    raw = encoded(encoding, 30, case[1])
    shifted = np.zeros(raw.nbytes + 1, np.uint8)[1:].reshape(raw.shape)
    shifted[:] = raw
    order = np.array([29, -1, 0, 0, *range(28, 10, -1), -1, -1, 5, 7, 6, 1, 2, 3, -1, 4])
    table = addresses(shifted, order)
    form = PACKED[encoding]
    weight = np.full(form.packed_bytes(len(order), case[1]), 0xA5, np.uint8)
    kernels.run(KERNELS[case][0], [table, weight], 0, len(table) // GROUP)
    rows = unpacked(kernels, case, weight, len(order))
    assert same_bits(rows[order >= 0], decoded(encoding, raw)[order[order >= 0]])
    assert (rows[order < 0] == 0).all()


@BY_CASE
def test_every_packed_byte_is_written_once(kernels: Kernels, case: tuple[Encoding, int]) -> None:
    """Whatever was there before; and groups in any order, by any thread, are the same bytes."""
    encoding, k = case
    raw, pack = encoded(encoding, N, k), KERNELS[case][0]
    table, nbytes = addresses(raw), PACKED[encoding].packed_bytes(N, k)
    results = []
    for before, ranges in ((0x00, [(0, 3)]), (0xFF, [(2, 3), (0, 1), (1, 2)])):
        memory = np.full(nbytes + 128, before, np.uint8)
        for low, high in ranges:
            kernels.run(pack, [table, memory[64:]], low, high)
        assert (memory[:64] == before).all()
        assert (memory[-64:] == before).all()
        results.append(memory[64:-64])
    assert (results[0] == results[1]).all()


def test_ids_outside_the_table_are_reported_and_nothing_is_touched(kernels: Kernels) -> None:
    case = (e.Q4_1, 96)
    raw = encoded(*case[:1], N, case[1])
    weight = packed(kernels, KERNELS[case][0], raw)
    for bad in (-1, N, N + 8, 1 << 40, -(1 << 63)):
        out = np.full((4, 96), 7, np.float32)
        error = np.zeros(3, np.int64)
        kernels.run(KERNELS[case][1], [np.array([3, bad, 0, N - 1]), weight, out, error, 11], 0, 4)
        assert error.tolist() == [11, bad, N]
        assert (out[1] == 7).all()
        assert same_bits(out[[0, 2, 3]], decoded(e.Q4_1, raw)[[3, 0, N - 1]])


def test_only_its_own_rows_are_embedded(kernels: Kernels) -> None:
    case = (e.F16, 20)
    raw = encoded(case[0], N, case[1])
    weight, out = packed(kernels, KERNELS[case][0], raw), aligned((8, 20))
    error = np.zeros(3, np.int64)
    kernels.run(KERNELS[case][1], [np.arange(8), weight, out, error, 1], 2, 5)
    assert not error.any()
    assert (out[:2] == 0).all()
    assert (out[5:] == 0).all()
    assert same_bits(out[2:5], decoded(e.F16, raw)[2:5])


def test_all_that_can_be_decoded_can_be_packed() -> None:
    assert set(PACKED) == set(CODECS)
    for encoding, form in PACKED.items():
        assert form.source == encoding
        assert FORMS[form.name].stored == form.stored
        assert form.reads in (encoding, e.F32)
    assert {encoding for encoding, form in PACKED.items() if form.reads == encoding} == set(ENCODINGS)


def test_packed_weights_are_hardly_larger_than_their_files() -> None:
    for form in FORMS.values():
        assert form.packed_bytes(16, 4096) <= 1.1 * 16 * form.source.row_bytes(4096)


def test_stored_encodings_are_of_their_own() -> None:
    assert len(STORED) == len(FORMS)
    for stored, form in STORED.items():
        assert not stored.is_plain
        assert stored not in CODECS
        assert stored.block_bytes * 9 == form.group_bytes(9 * stored.block // GROUP)


PACKED_BYTES = {
    "2": {
        "Q4_0": "8690ef7538e6d775",
        "Q4_1": "f97ec118a24e70f5",
        "Q5_0": "c870f50ac27cfb65",
        "Q5_1": "ba74122c3a9a719c",
        "Q8_0": "80cded636086091a",
        "IQ4_NL": "2708146c64c57008",
        "MXFP4": "1004f58110a0767e",
        "Q2_K": "791506319882333f",
        "Q3_K": "baaaf929063fa5aa",
        "Q4_K": "024ce60ba0fa348c",
        "Q5_K": "c07ebc8bc58a68e5",
        "Q6_K": "429b9c2dab2e52c6",
        "IQ4_XS": "e5808a4796b044f6",
        "F16": "4e1db23a8ec56bb6",
        "BF16": "4d9bcc58acedf451",
        "F32": "de9755bc42f5bb6f",
    },
}
"""By `PACKING`, what each form makes of given bytes, as digests. Packed weights are kept on disk: where a
digest changes, PACKING does, and its line here; a new form is a line more."""


def test_packing_is_the_one_it_says(kernels: Kernels) -> None:
    """On every instruction set."""
    made = {}
    for encoding in ENCODINGS:
        case = (encoding, some(encoding))
        given = random.Random(encoding.name).randbytes(N * encoding.row_bytes(case[1]))
        raw = np.frombuffer(given, np.uint8).reshape(N, -1) & 0x3F  # no scale is NaN
        made[encoding.name] = hashlib.sha256(packed(kernels, KERNELS[case][0], raw)).hexdigest()[:16]
    assert {PACKING: made} == PACKED_BYTES
