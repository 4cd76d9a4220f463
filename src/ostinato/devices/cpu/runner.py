"""The native side of the thread pool: what runs a tape's steps on all threads, emitted as IR.

A step is 8 int64 cells:

    0  address of the kernel               4  divisor of the multiplier, at least 1
    1  address of its argument cells       5  flags; bit 0: barrier before this step, bit 1: shared
    2  base item count                     6  how many pieces of a shared step are taken, i32
    3  address of an i64 multiplier, or 0  7  reserved

It has base · ceil(multiplier / divisor) items, or base where there is no multiplier, which is read after the
barrier. Thread t of n does the items items·t/n … items·(t+1)/n - 1 in one call `kernel(args, low, high,
scratch, t)`, or none where that is empty. A shared step is cut into about 8 pieces for each thread, and
whoever is free takes the next: it ends at the same time everywhere, also where one thread is slower or is
kept from running for a while. A job is int64 cells: address of the steps, their number, and the
address of a profile buffer or 0. A profile is u64 `[threads][steps][2]`: the cycle counter before and after
each thread's part of each step (on x86 the time-stamp counter, on aarch64 the virtual timer's, elsewhere
LLVM's steady counter).

A barrier makes all that was written before it visible, by the order of the words in `sync`. Kernels thus
write no non-temporal stores, which x86 leaves out of that order.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu import control as at
from ostinato.devices.cpu import sync
from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import I1, I32, I64, PTR, VOID
from ostinato.devices.cpu.isa import Isa

STEP_BYTES = 64
JOB_CELLS = 3
BARRIER, SHARED = 1, 2
"""The flags of a step: it waits for all steps before it; its items are taken piece by piece."""
_TAKEN = 48
_PIECES = 8
SLEEP, STOPPED = 1, 0
"""What `pool_serve` returns: sleep until the generation changes and call again, or leave."""

_DEFAULT_MODE = 0x1F80  # MXCSR: round to nearest even, nothing flushed to zero, all exceptions masked


def emit(isa: Isa) -> str:
    """The IR of the runner; `control` is a control block (see `control`).

    i32 pool_run(ptr control, ptr job): publish the job and do thread 0's part of it; returns 0.
    void pool_publish(ptr control, ptr job): workers see a job, or a stop; those that sleep wake.
    i32 pool_serve(ptr control, i64 thread): a worker's life; returns SLEEP or STOPPED.
    """
    module = Module(isa)
    sync.emit(module)
    _work(module)
    _publish(module)
    _run(module)
    _serve(module)
    return module.text()


@dataclass(frozen=True)
class _Call:
    """A thread's calls of a step's kernel."""

    kernel: Value
    args: Value
    scratch: Value
    thread: Value

    def of(self, f: Function, low: Value, high: Value) -> None:
        f.call_at(self.kernel, VOID, self.args, low, high, self.scratch, self.thread)


def _work(module: Module) -> None:
    """One thread's part of a job, from its first step to the barrier after its last."""
    f = module.function("pool_work", "ptr control, i64 thread", exported=False)
    control, thread = f["control"], f["thread"]
    mine = sync.thread_line(f, thread)
    if sync.is_x86(module.isa):
        _default_mode(f, mine)
    elif module.isa.arch == "aarch64":
        _default_mode_of_arm(f, mine)
    n = f.load(I64, control, at.THREADS)
    scratch = f.at(f.load(PTR, control, at.SCRATCH), f.load(I64, control, at.STRIDE) * thread)
    job = f.load(PTR, control, at.JOB)
    steps, count, profile = f.load(PTR, job), f.load(I64, job, 8), f.load(PTR, job, 16)
    profiled = _there(f, profile)
    stamps = f.at(profile, thread * count * 16)
    for i, _ in f.range(0, count):
        step = f.at(steps, i * STEP_BYTES)
        kernel, args = f.load(PTR, step, 0), f.load(PTR, step, 8)
        flags = f.load(I64, step, 40)
        for _ in f.when((flags & BARRIER).ne(0)):
            f.call("barrier", VOID, control, thread)
        items = f.load(I64, step, 16) * _multiplier(f, step)
        for _ in f.when(profiled):
            _stamp(f, f.at(stamps, i * 16), 0)
        call = _Call(kernel, args, scratch, thread)
        shared = (flags & SHARED).ne(0)
        for _ in f.when(shared.eq(0)):
            _do_share(f, call, items, n)
        for _ in f.when(shared):
            _do_pieces(f, call, items, n, step)
        for _ in f.when(profiled):
            _stamp(f, f.at(stamps, i * 16), 8)
    # From here on the job is the caller's again: nothing of it may be read.
    f.call("barrier", VOID, control, thread)
    if sync.is_x86(module.isa):
        f.call("llvm.x86.sse.ldmxcsr", VOID, f.at(mine, at.CALLERS_MODE))
    elif module.isa.arch == "aarch64":
        f.call("llvm.aarch64.set.fpcr", VOID, f.load(I32, mine, at.CALLERS_MODE).cast("zext", I64))
    f.ret()


def _do_share(f: Function, call: _Call, items: Value, n: Value) -> None:
    """The thread's share of all items."""
    low, high = items * call.thread // n, items * (call.thread + 1) // n
    for _ in f.when(low.lt(high)):
        call.of(f, low, high)


def _do_pieces(f: Function, call: _Call, items: Value, n: Value, step: Value) -> None:
    """Pieces as long as there are any."""
    size = (items // (n * _PIECES)).max(1)

    def take() -> Value:
        """The first item of a piece that is the thread's now."""
        return f.atomic_add(step, _TAKEN, 1).cast("zext", I64) * size

    for s in f.until(lambda s: s.low.ge(items), low=take()):
        call.of(f, s.low, (s.low + size).min(items))
        s.low = take()


def _default_mode(f: Function, mine: Value) -> None:
    """Results depend on the floating-point mode, and whoever calls may have changed it."""
    f.call("llvm.x86.sse.stmxcsr", VOID, f.at(mine, at.CALLERS_MODE))
    f.store(f.const(I32, _DEFAULT_MODE), mine, at.MODE)
    f.call("llvm.x86.sse.ldmxcsr", VOID, f.at(mine, at.MODE))


def _default_mode_of_arm(f: Function, mine: Value) -> None:
    """The same: FPCR 0. Its upper half is reserved."""
    f.store(f.call("llvm.aarch64.get.fpcr", I64).cast("trunc", I32), mine, at.CALLERS_MODE)
    f.call("llvm.aarch64.set.fpcr", VOID, f.const(I64, 0))


def _there(f: Function, pointer: Value) -> Value:
    return pointer.cast("ptrtoint", I64).ne(0)


def _multiplier(f: Function, step: Value) -> Value:
    cell, divisor = f.load(PTR, step, 24), f.load(I64, step, 32)
    return f.choose(
        _there(f, cell), lambda: (f.load(I64, cell) + divisor - 1) // divisor, lambda: f.const(I64, 1)
    )


def _stamp(f: Function, where: Value, offset: int) -> None:
    if f.module.isa.arch == "aarch64":
        # Of LLVM's own two, one is 0 here, and the other needs the system's leave.
        f.module.declare("declare i64 @llvm.read_volatile_register.i64(metadata)")
        register = 'metadata !{!"CNTVCT_EL0"}'
        f.store(f.op(I64, f"call i64 @llvm.read_volatile_register.i64({register})"), where, offset)
        return
    counter = "readcyclecounter" if sync.is_x86(f.module.isa) else "readsteadycounter"
    f.module.declare(f"declare i64 @llvm.{counter}()")
    f.store(f.op(I64, f"call i64 @llvm.{counter}()"), where, offset)


def _publish(module: Module) -> None:
    f = module.function("pool_publish", "ptr control, ptr job")
    control, word = f["control"], f.at(f["control"], at.GENERATION)
    f.store(f["job"], control, at.JOB)
    f.call("announce", VOID, control, word, f.atomic_load(word, 0, "monotonic") + 1)
    f.ret()


def _run(module: Module) -> None:
    f = module.function("pool_run", "ptr control, ptr job", I32)
    steps, count = f.load(PTR, f["job"]), f.load(I64, f["job"], 8)
    for i, _ in f.range(0, count):
        f.store(f.const(I32, 0), f.at(steps, i * STEP_BYTES), _TAKEN)
    f.call("pool_publish", VOID, f["control"], f["job"])
    f.call("pool_work", VOID, f["control"], f.const(I64, 0))
    f.ret(f.const(I32, 0))


def _serve(module: Module) -> None:
    f = module.function("pool_serve", "ptr control, i64 thread", I32)
    control, mine = f["control"], sync.thread_line(f, f["thread"])
    word, futex = f.at(control, at.GENERATION), sync.has_futex(f)

    def stopped() -> Value:
        return f.atomic_load(control, at.STOP).ne(0)

    for _ in f.when(f.load(I32, mine, at.ASLEEP).ne(0)):
        f.store(f.const(I32, 0), mine, at.ASLEEP)
        f.atomic_add(word, at.WATCHERS, -1, "seq_cst")
    for s in f.until(lambda s: s.over, over=f.const(I1, 0)):
        want = f.load(I32, mine, at.SEEN) + 1
        came = f.call("spin", I1, control, word, want, sync.patience(f, mine, at.LINGER))
        for _ in f.when(came.eq(0) & futex):
            f.call("block", VOID, control, word, want)
        s.over = (came | futex).eq(0) | stopped()
        for _ in f.when(s.over.eq(0)):
            f.store(want, mine, at.SEEN)
            f.call("pool_work", VOID, control, f["thread"])
    over = stopped()
    for _ in f.when(over.eq(0)):  # it has to look at the generation once more before it sleeps
        f.store(f.const(I32, 1), mine, at.ASLEEP)
        f.atomic_add(word, at.WATCHERS, 1, "seq_cst")
    f.ret(over.select(f.const(I32, STOPPED), f.const(I32, SLEEP)))
