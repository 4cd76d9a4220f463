"""Attention kernels: against a loop in float64, whatever unattended cells hold, the same bits however the
work is cut, and nothing touched outside the slabs."""

from __future__ import annotations

import itertools
import math
import threading

import numpy as np
import pytest
from attending import CASES, Case, Step, World, all_kernels, attend_many, bits

from devices.cpu.running import HOST_ISAS, Kernels
from ostinato.devices.cpu.kernels import attention_span
from ostinato.devices.cpu.kernels.attention_shape import SPAN
from ostinato.ir import encoding as enc
from sabotage import goes_red

STARTS = [0, 1, 31, 32, 127, 128, 255]
ALL = pytest.mark.parametrize("name", CASES)
UNMASKED = [name for name, case in CASES.items() if not case.masked]


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return all_kernels(request.param)


@pytest.fixture(scope="module")
def worlds() -> dict[str, World]:
    return {name: World(case) for name, case in CASES.items()}


def close(got: np.ndarray, expected: np.ndarray, world: World) -> None:
    bound = 2e-6 * np.abs(world.v.astype(np.float64)).max()
    np.testing.assert_allclose(got, expected, rtol=0, atol=bound)


@ALL
def test_one_row_with_its_writes(kernels: Kernels, worlds: dict[str, World], name: str) -> None:
    """The row's own K and V come rounded out of the slab: the slabs then hold it, and nothing else new."""
    world = worlds[name]
    case = world.case
    for start in (*STARTS, case.capacity - 1):
        slabs = world.slabs(start, math.nan, 0xFF)
        step = Step(kernels, world, case.one, start, *slabs)
        got = step.run()
        close(got, world.expected(start, 1)[0], world)
        assert not step.error.any()
        assert not step.counters.any()
        for slab, after, values in zip((case.many.k, case.many.v), slabs, (world.k, world.v), strict=True):
            held = slab.to_logical(after)
            np.testing.assert_array_equal(held[:, :, : start + 1], values[:, :, : start + 1])
            assert np.isnan(held[:, :, start + 1 :]).all()


@ALL
@pytest.mark.parametrize("rows", [1, 2, 5, 33])
def test_many_rows(kernels: Kernels, worlds: dict[str, World], name: str, rows: int) -> None:
    world = worlds[name]
    for start in (0, 31, 100, world.case.capacity - rows):
        slabs = world.slabs(start + rows, math.nan, 0xFF)
        close(attend_many(kernels, world, start, rows, slabs), world.expected(start, rows), world)


@ALL
def test_a_row_has_the_same_bits_alone_and_among_others(
    kernels: Kernels, worlds: dict[str, World], name: str
) -> None:
    world = worlds[name]
    case = world.case
    slabs = world.slabs(case.capacity)
    alone = np.stack([Step(kernels, world, case.one, i, *slabs).run() for i in range(case.capacity)])
    for start in (*STARTS, 300):
        for rows in range(1, 34):
            count = min(rows, case.capacity - start)
            if count > 0:
                got = attend_many(kernels, world, start, count, slabs)
                np.testing.assert_array_equal(bits(got), bits(alone[start : start + count]))


def test_reading_a_row_and_writing_it_first_are_the_same(kernels: Kernels, worlds: dict[str, World]) -> None:
    world = worlds["grouped"]
    for start in (0, 140, 332):
        read = Step(kernels, world, world.case.reader, start, *world.slabs(start + 1)).run()
        written = Step(kernels, world, world.case.one, start, *world.slabs(start)).run()
        np.testing.assert_array_equal(bits(written), bits(read))


def poisoned(world: World, start: int, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Slabs with NaN in every cell that no row attends, and in what pads them."""
    case = world.case
    k, v = np.full_like(world.k, math.nan), np.full_like(world.v, math.nan)
    cells = sorted({int(cell) for i in range(rows) for cell in world.cells(start + i)})
    k[:, :, cells], v[:, :, cells] = world.k[:, :, cells], world.v[:, :, cells]
    slabs = (case.many.k, case.many.v)
    buffers = [np.full(slab.nbytes, 0xFF, np.uint8) for slab in slabs]
    for slab, values, buffer in zip(slabs, (k, v), buffers, strict=True):
        slab.from_logical(values, buffer)
    return buffers[0], buffers[1]


@ALL
def test_unattended_cells_may_hold_anything(kernels: Kernels, worlds: dict[str, World], name: str) -> None:
    world = worlds[name]
    clean = world.slabs(world.case.capacity)
    for start, rows in ((0, 1), (37, 1), (128, 1), (255, 1), (0, 9), (120, 20), (200, 33)):
        expected = attend_many(kernels, world, start, rows, clean)
        got = attend_many(kernels, world, start, rows, poisoned(world, start, rows))
        np.testing.assert_array_equal(bits(got), bits(expected))
        assert np.isfinite(got).all()
        if rows == 1:
            step = Step(kernels, world, world.case.one, start, *poisoned(world, start, 1))
            np.testing.assert_array_equal(bits(step.run()), bits(expected[0]))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("which", ["k", "v"])
@pytest.mark.parametrize("name", UNMASKED)
def test_what_a_row_does_not_attend_yet_stays_out_of_it(
    kernels: Kernels, worlds: dict[str, World], name: str, which: str, value: float
) -> None:
    """Rows of one tile attend different cells: an infinity in the fifth row's own reaches no earlier row."""
    world = worlds[name]
    clean = attend_many(kernels, world, 126, 8, world.slabs(134))
    k, v = world.slabs(134)
    slab = getattr(world.case.many, which)
    buffer = {"k": k, "v": v}[which]
    logical = slab.to_logical(buffer)
    logical[:, :, 130, 0] = value
    slab.from_logical(logical, buffer)
    got = attend_many(kernels, world, 126, 8, (k, v))
    np.testing.assert_array_equal(bits(got[:4]), bits(clean[:4]))
    seen = got[4:].reshape(4, world.case.heads, world.case.v_dim)
    if which == "v":
        # It takes the block that it is rounded in with it.
        hit, value = (32, math.nan) if world.case.kv == enc.Q8_0 else (1, value)
        np.testing.assert_array_equal(seen[..., :hit], np.full_like(seen[..., :hit], value))
        np.testing.assert_array_equal(seen[..., hit:], clean[4:].reshape(seen.shape)[..., hit:])


def shuffled_parts(items: int, parts: int, seed: int) -> list[tuple[int, int]]:
    rng = np.random.default_rng(seed)
    cuts = sorted({0, items, *rng.integers(0, items + 1, parts).tolist()})
    ranges = list(itertools.pairwise(cuts))
    rng.shuffle(ranges)
    return [(int(low), int(high)) for low, high in ranges]


@ALL
def test_the_same_bits_however_items_are_dealt(kernels: Kernels, worlds: dict[str, World], name: str) -> None:
    world = worlds[name]
    start = 254
    expected = Step(kernels, world, world.case.one, start, *world.slabs(start)).run()
    many = attend_many(kernels, world, 200, 33, world.slabs(233))
    for seed in range(4):
        step = Step(kernels, world, world.case.one, start, *world.slabs(start))
        for low, high in shuffled_parts(step.items, 3, seed):
            step.part(low, high)
        np.testing.assert_array_equal(bits(step.out), bits(expected))
        assert not step.counters.any()
        tile = world.case.many.rows_per_item
        parts = shuffled_parts(-(-33 // tile) * world.case.kv_heads, 4, seed)
        got = attend_many(kernels, world, 200, 33, world.slabs(233), parts)
        np.testing.assert_array_equal(bits(got), bits(many))


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_the_same_bits_with_any_number_of_threads(
    kernels: Kernels, worlds: dict[str, World], threads: int
) -> None:
    """One item a call, side by side; again and again over the same counters and partials."""
    world = worlds["grouped"]
    start = 300
    expected = Step(kernels, world, world.case.one, start, *world.slabs(start)).run()
    step = Step(kernels, world, world.case.one, start, *world.slabs(start))
    for _ in range(20):
        step.out[:] = 99
        gate = threading.Barrier(threads)

        def work(number: int, gate: threading.Barrier = gate) -> None:
            gate.wait(30)
            for item in range(number, step.items, threads):
                step.part(item, item + 1)

        workers = [threading.Thread(target=work, args=(i,)) for i in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(60)
            assert not worker.is_alive()
        np.testing.assert_array_equal(bits(step.out), bits(expected))
        assert not step.counters.any()


@pytest.mark.parametrize(
    ("start", "length", "bad"),
    [(-1, 10, -1), (333, 333, 333), (1 << 62, 10, 1 << 62), (5, 334, 333), (333, 334, 333), (5, -3, -4)],
)
def test_positions_outside_the_slabs_are_reported_and_touch_nothing(
    kernels: Kernels, worlds: dict[str, World], start: int, length: int, bad: int
) -> None:
    world = worlds["grouped"]
    k, v = world.slabs(333)
    before = k.copy(), v.copy()
    step = Step(kernels, world, world.case.one, start, k, v, length)
    step.part(0, 9)
    assert step.error.tolist() == [5, bad, 333]
    assert (step.out == 99).all()
    assert not step.counters.any()
    np.testing.assert_array_equal(k, before[0])
    np.testing.assert_array_equal(v, before[1])


def test_more_rows_to_write_than_the_one_are_reported(kernels: Kernels, worlds: dict[str, World]) -> None:
    world = worlds["grouped"]
    k, v = world.slabs(333)
    before = k.copy(), v.copy()
    for count in (2, -1):
        step = Step(kernels, world, world.case.one, 7, k, v, 8, count)
        step.part(0, 9)
        assert step.error.tolist() == [5, count - 1, 1]
        assert (step.out == 99).all()
        assert not step.counters.any()
    np.testing.assert_array_equal(k, before[0])
    np.testing.assert_array_equal(v, before[1])


def test_a_row_that_isn_t_to_be_written_isn_t(kernels: Kernels, worlds: dict[str, World]) -> None:
    """It attends what is there."""
    world = worlds["grouped"]
    k, v = world.slabs(333)
    before = k.copy(), v.copy()
    step = Step(kernels, world, world.case.one, 200, k, v, 200, 0)
    step.run()
    assert not step.error.any()
    np.testing.assert_array_equal(k, before[0])
    np.testing.assert_array_equal(v, before[1])
    clean = Step(kernels, world, world.case.one, 199, k, v, 200, 1)
    clean.args[0] = step.args[0]
    clean.args[clean.kernel.params.index("q_cos")] = step.args[clean.kernel.params.index("q_cos")]
    clean.args[clean.kernel.params.index("q_sin")] = step.args[clean.kernel.params.index("q_sin")]
    np.testing.assert_array_equal(bits(clean.run()), bits(step.out))


def test_a_length_beyond_the_slabs_stops_many_rows_too(kernels: Kernels, worlds: dict[str, World]) -> None:
    world = worlds["grouped"]
    with pytest.raises(AssertionError, match=r"5, 333, 333|5 333 333"):
        attend_many(kernels, world, 300, 33, world.slabs(333), length=334)


@pytest.mark.parametrize("name", ["odd dims, masked", "masked window"])
def test_a_row_that_attends_nothing_is_nan(kernels: Kernels, worlds: dict[str, World], name: str) -> None:
    """As the softmax of nothing but -inf is; the rows beside it keep their values."""
    world = World(CASES[name])
    expected = attend_many(kernels, worlds[name], 140, 5, world.slabs(145))
    world.mask[142] = -math.inf
    got = attend_many(kernels, world, 140, 5, world.slabs(145))
    assert np.isnan(got[2]).all()
    np.testing.assert_array_equal(bits(np.delete(got, 2, 0)), bits(np.delete(expected, 2, 0)))
    assert np.isnan(Step(kernels, world, world.case.one, 142, *world.slabs(145)).run()).all()


def test_the_lowest_finite_mask_takes_nothing_away(kernels: Kernels, worlds: dict[str, World]) -> None:
    """Files that mask with float32's lowest number: a row of nothing else attends all alike."""
    world = World(CASES["odd dims, masked"])
    world.mask[200] = np.finfo(np.float32).min
    got = attend_many(kernels, world, 200, 1, world.slabs(201))
    mean = world.v[0, :, :201].mean(1)  # [kv_heads, v_dim]
    close(got[0].reshape(4, 5), np.repeat(mean, 2, 0), world)


def test_scores_of_any_size(kernels: Kernels) -> None:
    """Weights that vanish and scores of minus infinity; one of infinity is NaN, as in the reference."""
    world = World(CASES["f32, part of the head rotated"])
    world.q[150] *= 300.0
    close(attend_many(kernels, world, 150, 1, world.slabs(151)), world.expected(150, 1), world)
    world.q[150] = 0.0
    world.q[150, :, 12] = 1e20
    world.k[:, :, :, 12] = -1e20
    world.k[:, :, 40, 12] = 0.0
    np.testing.assert_array_equal(
        attend_many(kernels, world, 150, 1, world.slabs(151))[0].reshape(2, 3, 40)[:, 0], world.v[0, :, 40]
    )
    world.k[:, :, 41, 12] = 1e20
    assert np.isnan(attend_many(kernels, world, 150, 1, world.slabs(151))).all()


def test_a_span_is_whole_blocks() -> None:
    assert SPAN % 32 == 0


def test_selecting_lanes_is_what_keeps_other_cells_out(monkeypatch: pytest.MonkeyPatch) -> None:
    case = Case(2, 1, 16, 16, 64, enc.F32)
    world = World(case)

    def check() -> None:
        kernels = Kernels(HOST_ISAS[0], [case.many, case.reader])
        got = attend_many(kernels, world, 20, 3, poisoned(world, 20, 3))
        assert np.isfinite(got).all()

    def every_lane(f, row, first):  # type: ignore[no-untyped-def]
        return f.iota().lt(16)

    goes_red(monkeypatch, attention_span, "attended_lanes", every_lane, check)
