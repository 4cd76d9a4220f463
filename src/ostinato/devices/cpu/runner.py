"""The native side of the thread pool: what runs a tape's steps on all threads, emitted as IR.

A step is 8 int64 cells:

    0  address of the kernel               4  divisor of the multiplier, at least 1
    1  address of its argument cells       5  flags; bit 0: barrier before this step
    2  base item count                     6  reserved
    3  address of an i64 multiplier, or 0  7  reserved

It has base · ceil(multiplier / divisor) items, or base where there is no multiplier, which is read after the
barrier. Thread t of n does the items items·t/n … items·(t+1)/n - 1 in one call `kernel(args, low, high,
scratch, t)`, or none where that is empty. A job is int64 cells: address of the steps, their number, and the
address of a profile buffer or 0. A profile is u64 `[threads][steps][2]`: the cycle counter before and after
each thread's part of each step (on x86 the time-stamp counter, elsewhere LLVM's steady counter).

A barrier makes all that was written before it visible, by release and acquire on the flags below. Kernels
thus write no non-temporal stores, which x86 leaves out of that order.

The pool's control block is cache lines of 128 bytes, since x86 fetches lines in pairs. Its addresses of C
functions stand in it as data, so that the code is the same on every system.
"""

from __future__ import annotations

from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import I1, I32, I64, PTR, VOID
from ostinato.devices.cpu.isa import Isa

STEP_BYTES = 64
JOB_CELLS = 3
BARRIER = 1
"""The flag of a step that waits for all steps before it."""

LINE = 128
# The line that the caller writes for each run, and idle workers watch.
GENERATION = 0  # i32, one more for each run; what sleepers wait on
STOP = 4  # i32
JOB = 8  # ptr
# A line that sleepers write.
SLEEPERS = LINE  # i32
# A line that is only read.
THREADS = 2 * LINE  # i64
SCRATCH = THREADS + 8  # ptr, thread 0's
STRIDE = THREADS + 16  # i64, from a thread's scratch memory to the next one's
PATIENCE = THREADS + 24  # i64, pauses at a barrier before a thread offers its CPU to others
LINGER = THREADS + 32  # i64, pauses of an idle worker before it sleeps
YIELD = THREADS + 40  # address of a C function without parameters that offers the CPU
SYSCALL = THREADS + 48  # address of `long syscall(long, ...)`, or 0: workers return to Python for their sleep
FUTEX = THREADS + 56  # i64, the number of that system call
# A line for each thread, which it alone writes.
LINES = 3 * LINE
ARRIVED = 0  # i32, counts the rounds of barriers that it has come to; others watch it
SEEN = 4  # i32, the generation it has served
MODE = 8  # i32, the floating-point mode that the thread came with
OURS = 12  # i32, the one it works in

SLEEP, STOPPED = 1, 0
"""What `pool_serve` returns: sleep until the generation changes and call again, or leave."""

_WAIT, _WAKE, _EVERYONE = 128, 129, 0x7FFFFFFF  # FUTEX_WAIT and FUTEX_WAKE, both | FUTEX_PRIVATE_FLAG
_DEFAULT_MODE = 0x1F80  # MXCSR: round to nearest even, nothing flushed to zero, all exceptions masked
_YIELD_EVERY = 64  # pauses of an idle worker


def control_bytes(threads: int) -> int:
    """Size of the control block of a pool."""
    return LINES + threads * LINE


def emit(isa: Isa) -> str:
    """The IR of the runner.

    i32 pool_run(ptr control, ptr job): a whole run, for the caller, who is thread 0; returns 0.
    void pool_publish(ptr control, ptr job): its first half; workers see the job, those in a futex wake.
    void pool_work(ptr control, i64 thread): its second half.
    i32 pool_serve(ptr control, i64 thread): a worker's life; returns SLEEP or STOPPED.
    """
    module = Module(isa)
    _barrier(module)
    _work(module)
    _publish(module)
    _run(module)
    _serve(module)
    return module.text()


def _is_x86(module: Module) -> bool:
    return module.isa.cpu.startswith("x86-64")


def _line(f: Function, thread: Value) -> Value:
    return f.at(f["control"], thread * LINE + LINES)


def _pause(f: Function) -> None:
    """Tell the core that this is a waiting loop."""
    if _is_x86(f.module):
        f.module.declare("declare void @llvm.x86.sse2.pause()")
        f.raw("call void @llvm.x86.sse2.pause()")


def _offer_cpu(f: Function) -> None:
    f.call_at(f.load(PTR, f["control"], YIELD), I32)


def _stamp(f: Function, where: Value, offset: int) -> None:
    counter = "readcyclecounter" if _is_x86(f.module) else "readsteadycounter"
    f.module.declare(f"declare i64 @llvm.{counter}()")
    f.store(f.op(I64, f"call i64 @llvm.{counter}()"), where, offset)


def _barrier(module: Module) -> None:
    """Wait until every thread is here: in round r, thread t waits for thread t - 2^r to come to that round
    (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988). log2(n) rounds, for any
    n, and no word that two threads write. One counter a thread will do: nobody comes to a round without
    having left all those before.
    """
    f = module.function("barrier", "ptr control, i64 thread", exported=False)
    n = f.load(I64, f["control"], THREADS)
    patience = f.load(I64, f["control"], PATIENCE)
    mine = _line(f, f["thread"])
    arrived = f.load(I32, mine, ARRIVED)
    for s in f.until(lambda s: s.distance.ge(n), distance=f.const(I64, 1), arrived=arrived):
        s.arrived = s.arrived + 1
        f.atomic_store(s.arrived, mine, ARRIVED)
        other = f["thread"] - s.distance
        theirs = _line(f, other.lt(0).select(other + n, other))
        want = s.arrived

        def here(_: object, theirs: Value = theirs, want: Value = want) -> Value:
            return (f.atomic_load(theirs, ARRIVED) - want).ge(0)  # a difference, for the count wraps

        for w in f.until(here, turn=f.const(I64, 0)):
            _pause(f)
            # Where threads are more than CPUs, the one that all wait for may need this one.
            for _ in f.when(w.turn.ge(patience)):
                _offer_cpu(f)
            w.turn = w.turn + 1
        s.distance = s.distance << 1
    f.ret()


def _work(module: Module) -> None:
    """One thread's part of a job, from its first step to the barrier after its last."""
    f = module.function("pool_work", "ptr control, i64 thread")
    control, thread = f["control"], f["thread"]
    mine = _line(f, thread)
    if _is_x86(module):
        _save_mode(f, mine)
    n = f.load(I64, control, THREADS)
    scratch = f.at(f.load(PTR, control, SCRATCH), f.load(I64, control, STRIDE) * thread)
    job = f.load(PTR, control, JOB)
    steps, count, profile = f.load(PTR, job), f.load(I64, job, 8), f.load(PTR, job, 16)
    profiled = _there(f, profile)
    stamps = f.at(profile, thread * count * 16)
    for i, _ in f.range(0, count):
        step = f.at(steps, i * STEP_BYTES)
        kernel, args = f.load(PTR, step, 0), f.load(PTR, step, 8)
        for _ in f.when((f.load(I64, step, 40) & BARRIER).ne(0)):
            f.call("barrier", VOID, control, thread)
        items = f.load(I64, step, 16) * _multiplier(f, step)
        low, high = items * thread // n, items * (thread + 1) // n
        for _ in f.when(profiled):
            _stamp(f, f.at(stamps, i * 16), 0)
        for _ in f.when(low.lt(high)):
            f.call_at(kernel, VOID, args, low, high, scratch, thread)
        for _ in f.when(profiled):
            _stamp(f, f.at(stamps, i * 16), 8)
    # From here on the job is the caller's again: nothing of it may be read.
    f.call("barrier", VOID, control, thread)
    if _is_x86(module):
        _restore_mode(f, mine)
    f.ret()


def _there(f: Function, pointer: Value) -> Value:
    return pointer.cast("ptrtoint", I64).ne(0)


def _multiplier(f: Function, step: Value) -> Value:
    cell, divisor = f.load(PTR, step, 24), f.load(I64, step, 32)
    return f.choose(
        _there(f, cell), lambda: (f.load(I64, cell) + divisor - 1) // divisor, lambda: f.const(I64, 1)
    )


def _save_mode(f: Function, mine: Value) -> None:
    """Results depend on the floating-point mode, and whoever calls may have changed it."""
    f.call("llvm.x86.sse.stmxcsr", VOID, f.at(mine, MODE))
    f.store(f.const(I32, _DEFAULT_MODE), mine, OURS)
    f.call("llvm.x86.sse.ldmxcsr", VOID, f.at(mine, OURS))


def _restore_mode(f: Function, mine: Value) -> None:
    f.call("llvm.x86.sse.ldmxcsr", VOID, f.at(mine, MODE))


def _publish(module: Module) -> None:
    f = module.function("pool_publish", "ptr control, ptr job")
    control = f["control"]
    f.store(f["job"], control, JOB)
    generation = f.atomic_load(control, GENERATION, "monotonic")
    # Sequentially consistent, here and where workers go to sleep: one of the two sees the other.
    f.atomic_store(generation + 1, control, GENERATION, "seq_cst")
    for _ in f.when(f.atomic_load(control, SLEEPERS, "seq_cst").ne(0)):
        _futex(f, _WAKE, f.const(I32, _EVERYONE))
    f.ret()


def _run(module: Module) -> None:
    f = module.function("pool_run", "ptr control, ptr job", I32)
    f.call("pool_publish", VOID, f["control"], f["job"])
    f.call("pool_work", VOID, f["control"], f.const(I64, 0))
    f.ret(f.const(I32, 0))


def _futex(f: Function, op: int, value: Value) -> None:
    """futex(2) on the generation, without a time-out."""
    control = f["control"]
    syscall, number = f.load(PTR, control, SYSCALL), f.load(I64, control, FUTEX)
    word = f.at(control, GENERATION)
    f.op(
        I64,
        f"call i64 (i64, ...) {syscall.name}(i64 {number.name}, ptr {word.name}, i32 {op}, i32 {value.name}, "
        "ptr null)",
    )


def _serve(module: Module) -> None:
    f = module.function("pool_serve", "ptr control, i64 thread", I32)
    control, mine = f["control"], _line(f, f["thread"])
    linger, futex = f.load(I64, control, LINGER), _there(f, f.load(PTR, control, SYSCALL))

    def stopped() -> Value:
        return f.atomic_load(control, STOP).ne(0)

    def idle() -> Value:
        return f.atomic_load(control, GENERATION).eq(f.load(I32, mine, SEEN))

    def working() -> Value:
        return f.atomic_load(control, GENERATION).ne(f.load(I32, mine, SEEN))

    for s in f.until(lambda s: s.over, over=f.const(I1, 0)):
        for w in f.until(lambda w: working() | w.turn.ge(linger), turn=f.const(I64, 0)):
            _pause(f)
            for _ in f.when((w.turn & (_YIELD_EVERY - 1)).eq(_YIELD_EVERY - 1)):
                _offer_cpu(f)
            w.turn = w.turn + 1
        for _ in f.when(idle() & futex):
            f.atomic_add(control, SLEEPERS, 1, "seq_cst")
            for _ in f.until(lambda _: working()):
                _futex(f, _WAIT, f.load(I32, mine, SEEN))
            f.atomic_add(control, SLEEPERS, -1, "seq_cst")
        # Published while it lingered or slept, or else it has no futex and leaves for its sleep.
        went = idle()
        s.over = went | stopped()
        for _ in f.when(s.over.eq(0)):
            f.store(f.load(I32, mine, SEEN) + 1, mine, SEEN)
            f.call("pool_work", VOID, control, f["thread"])
    f.ret(stopped().select(f.const(I32, STOPPED), f.const(I32, SLEEP)))
