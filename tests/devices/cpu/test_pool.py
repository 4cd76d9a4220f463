"""A tape on several threads: the order of its steps, how items are dealt, and who may call."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from tapes import SCRATCH, Divide, Gathering, Job, Mark, Step, Wherever, float_mode, prefix_sums

from devices.cpu.running import HOST_ISAS
from ostinato.devices.cpu import control as at
from ostinato.devices.cpu import llvm, runner, sync
from ostinato.devices.cpu.emit.types import VOID
from ostinato.devices.cpu.isa import Isa, select
from ostinato.devices.cpu.pool import ThreadPool
from ostinato.devices.cpu.waiting import InFutex, InPython
from ostinato.errors import PoolClosed
from sabotage import goes_red, nothing

ISA = select()
WAITINGS = [InPython, *([InFutex] if InFutex.available() else [])]
THREADS = [1, 2, 3, 4, 8]  # more than some machines have CPUs: nothing may depend on all running at once

EMPTY = Job(ISA, [])

Make = Callable[..., ThreadPool]


@pytest.fixture(scope="module", autouse=True)
def own_code_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a sabotaged guard compiles to stays out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OSTINATO_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(params=WAITINGS, ids=lambda kind: kind.__name__)
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes pools, with each way to sleep."""
    made = []

    def pool(threads: int, isa: Isa = ISA) -> ThreadPool:
        made.append(ThreadPool(threads, isa, _waiting=request.param()))
        return made[-1]

    yield pool
    for each in made:
        each.close()


def check_order(pool: ThreadPool, repeats: int, count: int = 300) -> None:
    job, x, sums = prefix_sums(ISA, count)
    for repeat in range(repeats):
        x[:] = repeat
        pool.run(job.address)
        assert np.array_equal(sums, np.arange(1, count + 1) * repeat), f"repeat {repeat}"


@pytest.mark.parametrize("threads", THREADS)
def test_steps_run_in_order(make: Make, threads: int) -> None:
    check_order(make(threads), 2000 if threads <= 2 else 100)


@pytest.mark.parametrize("threads", [2, 3])
def test_steps_run_in_order_when_each_wait_is_a_sleep(make: Make, threads: int) -> None:
    pool = make(threads)
    pool._set(at.PATIENCE, 0)
    pool._set(at.LINGER, 0)
    check_order(pool, 300)


@pytest.mark.parametrize("isa", HOST_ISAS, ids=lambda isa: isa.name)
def test_steps_run_in_order_on_every_instruction_set(make: Make, isa: Isa) -> None:
    check_order(make(2, isa), 100)


def test_a_barrier_that_does_not_wait_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        pool = ThreadPool(2, ISA)
        try:
            check_order(pool, 2000)
        finally:
            pool.close()  # before the job's memory goes: its worker may be behind

    goes_red(monkeypatch, sync, "await_", nothing, check)


@pytest.mark.parametrize("threads", THREADS)
def test_every_item_is_done_once_by_the_thread_that_it_belongs_to(make: Make, threads: int) -> None:
    pool = make(threads)
    for items in range(34):
        seen, who = np.zeros(40, np.int64), np.full(40, -1, np.int64)
        job = Job(ISA, [Step(Mark(), (seen, who), items)])
        pool.run(job.address)
        assert np.array_equal(seen, np.arange(40) < items)
        for thread in range(threads):
            low, high = items * thread // threads, items * (thread + 1) // threads
            assert (who[low:high] == thread).all()
        assert (who[items:] == -1).all()


@pytest.mark.parametrize("threads", THREADS)
def test_every_item_of_a_shared_step_is_done_once(make: Make, threads: int) -> None:
    pool = make(threads)
    for items in (*range(34), 100, 1000):
        seen, who = np.zeros(1000, np.int64), np.full(1000, -1, np.int64)
        job = Job(ISA, [Step(Mark(), (seen, who), items, shared=True)])
        for turn in range(1, 4):
            pool.run(job.address)
            assert np.array_equal(seen, turn * (np.arange(1000) < items))
        assert (who[:items] >= 0).all()
        assert (who[:items] < threads).all()
        assert (who[items:] == -1).all()


def test_a_thread_that_is_held_up_leaves_a_shared_step_to_the_others(make: Make) -> None:
    """Item 0 is done when all others are, but those of its own piece."""
    pool = make(2)
    done, waited = np.zeros(1, np.int32), np.zeros(1, np.int64)
    pool.run(Job(ISA, [Step(Gathering(), (done, 64 - 64 // 16, waited), 64, shared=True)]).address)
    assert done[0] == 64
    assert waited[0] < 1 << 28, "nobody took the other pieces"


@pytest.mark.parametrize("threads", [1, 3])
def test_a_cell_multiplies_the_items(make: Make, threads: int) -> None:
    pool = make(threads)
    cell = np.zeros(1, np.int64)
    seen, who = np.zeros(100, np.int64), np.zeros(100, np.int64)
    job = Job(ISA, [Step(Mark(), (seen, who), 3, cell, divisor=4)])
    for value in (0, 1, 3, 4, 5, 8, 9, 100):
        cell[0], seen[:] = value, 0
        pool.run(job.address)
        assert np.array_equal(seen, np.arange(100) < 3 * -(-value // 4)), value


def test_a_cell_is_read_after_the_barrier(make: Make) -> None:
    """The step before writes the number of items."""
    pool = make(2)
    cell, unused = np.zeros(1, np.int64), np.zeros(1, np.int64)
    seen, who = np.zeros(8, np.int64), np.zeros(8, np.int64)
    count = Step(Mark(), (cell, unused), 1)
    job = Job(ISA, [count, Step(Mark(), (seen, who), 1, cell, barrier=True)])
    for _ in range(8):
        pool.run(job.address)
    assert np.array_equal(seen, [8, 7, 6, 5, 4, 3, 2, 1])


def test_a_job_without_steps(make: Make) -> None:
    pool = make(2)
    for _ in range(1000):
        pool.run(EMPTY.address)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_profile_stamps_follow_the_steps(make: Make, threads: int) -> None:
    pool = make(threads)
    seen, who = np.zeros(5000, np.int64), np.zeros(5000, np.int64)
    steps = [Step(Mark(), (seen, who), items, barrier=True) for items in (5000, 1, 5000)]
    job = Job(ISA, steps, threads=threads, profile=True)
    pool.run(job.address)
    stamps = job.profile.astype(np.int64)  # [threads, steps, before and after]
    assert (stamps > 0).all()
    assert (np.diff(stamps.reshape(threads, -1)) >= 0).all()
    busy = stamps[:, 0, 1] - stamps[:, 0, 0]
    assert (busy > 100).all(), "5000 items in fewer than 100 cycles"


def test_scratch_memory_is_each_threads_own(make: Make) -> None:
    pool = make(3)
    where = np.zeros(3, np.int64)
    job = Job(ISA, [Step(Wherever(SCRATCH), (where,), 3)])
    for nbytes in (SCRATCH, 64, 3 * SCRATCH, SCRATCH):
        pool.run(job.address, nbytes)
        assert (where % 64 == 0).all()
        assert (np.diff(where) >= max(nbytes, SCRATCH)).all()
    assert pool.scratch_bytes >= 3 * SCRATCH


FLUSHING = 0x9FC0  # MXCSR: denormals are zero, results are flushed to zero
INEXACT = 0x20  # MXCSR's flag of a rounded result, which any float of Python's own raises meanwhile


def check_float_mode() -> None:
    get, set_ = float_mode(ISA)
    before = get()
    x, y, out = np.float32([1e-38]), np.float32([4.0]), np.zeros(4, np.float32)
    job = Job(ISA, [Step(Divide(), (x, y, out), 4)])
    try:
        set_(FLUSHING)
        pool = ThreadPool(2, ISA)  # its worker starts in this mode too
        pool.run(job.address)
        # Exceptions that kernels raise stay out of the caller's sight too: this one's are a denormal operand,
        # an underflow, an inexact result.
        assert get() & ~INEXACT == FLUSHING
    finally:
        set_(before)
        pool.close()
    assert (out.view(np.uint32) == (np.float32(1e-38) / np.float32(4)).view(np.uint32)).all()


@pytest.mark.skipif(not ISA.cpu.startswith("x86"), reason="MXCSR is x86's")
def test_kernels_run_in_the_default_floating_point_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_save(f: runner.Function, mine: runner.Value) -> None:
        f.call("llvm.x86.sse.stmxcsr", VOID, f.at(mine, at.CALLERS_MODE))

    goes_red(monkeypatch, runner, "_default_mode", only_save, check_float_mode)


def test_the_runner_needs_nothing_of_x86() -> None:
    binding = llvm.binding()
    elsewhere = Isa("generic", "", "", fma=True, requires=frozenset())
    ir = runner.emit(elsewhere)
    assert "x86" not in ir
    try:
        binding.initialize_all_targets()
        binding.initialize_all_asmprinters()
        target = binding.Target.from_triple("aarch64-linux-gnu")
    except RuntimeError as error:
        pytest.skip(str(error))
    module = binding.parse_assembly(ir, binding.create_context())
    module.verify()
    code = target.create_target_machine(opt=2).emit_assembly(module)
    assert re.search(r"\bstlr\b", code), "words are announced with a release"
    assert re.search(r"\bldar\b", code), "and read with an acquire"


def test_threads_that_call_one_pool_take_turns(make: Make) -> None:
    pool = make(2)
    _all_at_once([lambda: check_order(pool, 60) for _ in range(8)])


def test_pools_of_different_sizes_run_at_once(make: Make) -> None:
    pools = [make(threads) for threads in (1, 2, 3, 2)]
    _all_at_once([lambda pool=pool: check_order(pool, 60) for pool in pools])


def test_a_process_has_one_pool_of_a_size() -> None:
    pool = ThreadPool.of(2, ISA)
    assert ThreadPool.of(2, ISA) is pool
    assert ThreadPool.of(1, ISA) is not pool
    found: list[ThreadPool] = []
    _all_at_once([lambda: found.append(ThreadPool.of(3, ISA)) for _ in range(8)])
    assert len(set(map(id, found))) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_a_closed_pool_refuses_to_run(make: Make, threads: int) -> None:
    pool = make(threads)
    check_order(pool, 3)
    pool.close()
    with pytest.raises(PoolClosed):
        pool.run(EMPTY.address)
    pool.close()
    assert not any(worker.is_alive() for worker in pool._workers)


def test_those_who_wait_while_a_pool_closes_are_refused(make: Make) -> None:
    """A run after the workers have left would wait for them for ever."""
    pool = make(2)
    refused = []

    def use() -> None:
        try:
            while True:
                pool.run(EMPTY.address)
        except PoolClosed as error:
            refused.append(error)

    def close() -> None:
        check_order(pool, 3)
        pool.close()

    _all_at_once([*([use] * 4), close])
    assert len(refused) == 4


def test_a_pool_that_nobody_closes_outlives_its_last_user() -> None:
    ThreadPool(2, ISA).run(EMPTY.address)
    check_order(ThreadPool(2, ISA), 3)


def test_a_pool_that_gets_too_few_threads_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def two_at_most(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", two_at_most)
        with pytest.raises(RuntimeError, match="can't start"):
            ThreadPool.of(5, ISA)
    assert len(started) == 2
    assert not any(worker.is_alive() for worker in started)
    check_order(ThreadPool.of(5, ISA), 3)


def test_one_after_another_many_pools() -> None:
    """A worker that has not come to life yet finds the first job, and a stop, all the same."""
    for kind in WAITINGS:
        for runs in (0, 1):
            for _ in range(20):
                pool = ThreadPool(3, ISA, _waiting=kind())
                for _ in range(runs):
                    pool.run(EMPTY.address)
                pool.close()
                assert not any(worker.is_alive() for worker in pool._workers)


def _all_at_once(tasks: list[Callable[[], object]]) -> None:
    """Run each in a thread of its own; a failure of one is a failure here, and so is one that never ends."""
    failures: list[BaseException] = []

    def run(task: Callable[[], object]) -> None:
        try:
            task()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=(task,), daemon=True) for task in tasks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "still running"
    if failures:
        raise failures[0]
