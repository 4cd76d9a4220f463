"""How threads wait for each other in native code: words that only grow, and a barrier made of them.

Waiting is first a loop and then a sleep. The loop is by far the faster while the awaited thread has a CPU.
Where it has none, because other work or this very loop took it, each turn is lost: a thread that ran out of
patience some times in a row no longer loops, but for one wait in 64 that finds out whether times are better.
Offering the CPU (sched_yield) instead is no help beside other work: with one other busy process on Linux 6.18
a tape took 145 ms that way and 3 to 11 ms this way. The offer seems to cost the rest of a time slice.
"""

from __future__ import annotations

from ostinato.devices.cpu import control as at
from ostinato.devices.cpu.emit.builder import Function, Module, Value
from ostinato.devices.cpu.emit.types import I1, I32, I64, PTR, VOID
from ostinato.devices.cpu.isa import Isa

_WAIT, _WAKE, _EVERYONE = 128, 129, 0x7FFFFFFF  # FUTEX_WAIT and FUTEX_WAKE, both | FUTEX_PRIVATE_FLAG
_HOPELESS = 3  # failures in a row
_TRY_AGAIN = 64


def emit(module: Module) -> None:
    """void announce(control, word, i32 value), i1 spin(control, word, i32 value, i64 turns), void
    block(control, word, i32 value), void barrier(control, i64 thread)."""
    _announce(module)
    _spin(module)
    _block(module)
    _barrier(module)


def is_x86(isa: Isa) -> bool:
    return isa.cpu.startswith("x86-64")


def turns(isa: Isa, pauses: int) -> int:
    """As many turns of the waiting loop as take the time of so many on x86, whose pause is some 40 cycles."""
    return pauses if is_x86(isa) else 16 * pauses


def thread_line(f: Function, thread: Value) -> Value:
    return f.at(f["control"], thread * at.LINE + at.LINES)


def has_futex(f: Function) -> Value:
    return f.load(I64, f["control"], at.SYSCALL).ne(0)


def patience(f: Function, mine: Value, most: int) -> Value:
    """How many turns a thread should wait: the setting at `most`, or none where that has come to nothing."""
    return f.load(I32, mine, at.FAILURES).lt(_HOPELESS).select(f.load(I64, f["control"], most), 0)


def _announce(module: Module) -> None:
    """Set the word, after everything that was written before, and wake those who sleep."""
    f = module.function("announce", "ptr control, ptr word, i32 value", exported=False)
    # Sequentially consistent, here and where threads go to sleep: one of the two sees the other.
    f.atomic_store(f["value"], f["word"], 0, "seq_cst")
    for _ in f.when(f.atomic_load(f["word"], at.WATCHERS, "seq_cst").ne(0)):
        futex = has_futex(f)
        for _ in f.when(futex):
            _futex(f, _WAKE, f.const(I32, _EVERYONE))
        for _ in f.when(futex.eq(0)):
            f.call_at(f.load(PTR, f["control"], at.WAKE), VOID)
    f.ret()


def _spin(module: Module) -> None:
    """Loop until the word has the value or a later one; false when it hasn't after so many turns."""
    f = module.function("spin", "ptr control, ptr word, i32 value, i64 turns", I1, exported=False)
    for s in f.until(lambda s: _reached(f) | s.turn.ge(f["turns"]), turn=f.const(I64, 0)):
        _pause(f)
        s.turn = s.turn + 1
    f.ret(_reached(f))


def _block(module: Module) -> None:
    """Sleep until the word has the value or a later one; without a futex, let others run."""
    f = module.function("block", "ptr control, ptr word, i32 value", exported=False)
    futex = has_futex(f)
    for _ in f.when(futex):
        f.atomic_add(f["word"], at.WATCHERS, 1, "seq_cst")
        for s in f.until(lambda s: _passed(f, s.now), now=f.atomic_load(f["word"], 0, "seq_cst")):
            _futex(f, _WAIT, s.now)
            s.now = f.atomic_load(f["word"], 0, "seq_cst")
        f.atomic_add(f["word"], at.WATCHERS, -1, "seq_cst")
    for _ in f.when(futex.eq(0)):
        for _ in f.until(lambda _: _reached(f)):
            f.call_at(f.load(PTR, f["control"], at.YIELD), I32)
    f.ret()


def _barrier(module: Module) -> None:
    """Wait until every thread is here: in round r, thread t waits for thread t - 2^r to come to that round
    (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988). log2(n) rounds for any
    n, and no word that two threads write. One counter a thread will do: nobody comes to a round without
    having left all those before.
    """
    f = module.function("barrier", "ptr control, i64 thread", exported=False)
    control, n = f["control"], f.load(I64, f["control"], at.THREADS)
    mine = thread_line(f, f["thread"])
    arrived = f.load(I32, mine, at.ARRIVED)
    for s in f.until(lambda s: s.distance.ge(n), distance=f.const(I64, 1), arrived=arrived):
        s.arrived = s.arrived + 1
        f.call("announce", VOID, control, f.at(mine, at.ARRIVED), s.arrived)
        other = f["thread"] - s.distance
        theirs = f.at(thread_line(f, other.lt(0).select(other + n, other)), at.ARRIVED)
        for _ in f.when(_passed(f, f.atomic_load(theirs), s.arrived).eq(0)):
            await_(f, mine, theirs, s.arrived)
        s.distance = s.distance << 1
    f.ret()


def await_(f: Function, mine: Value, word: Value, value: Value) -> None:
    waits = f.load(I32, mine, at.WAITS) + 1
    f.store(waits, mine, at.WAITS)
    hopeful = (waits & (_TRY_AGAIN - 1)).eq(0)
    most = hopeful.select(f.load(I64, f["control"], at.PATIENCE), patience(f, mine, at.PATIENCE))
    came = f.call("spin", I1, f["control"], word, value, most)
    f.store(came.select(f.const(I32, 0), f.load(I32, mine, at.FAILURES) + 1), mine, at.FAILURES)
    for _ in f.when(came.eq(0)):
        f.call("block", VOID, f["control"], word, value)


def _passed(f: Function, now: Value, value: Value | None = None) -> Value:
    """Whether a word is at the value or later: by their difference, since words wrap."""
    return (now - (f["value"] if value is None else value)).ge(0)


def _reached(f: Function) -> Value:
    return _passed(f, f.atomic_load(f["word"]))


def _pause(f: Function) -> None:
    """Tell the core that this is a waiting loop."""
    if is_x86(f.module.isa):
        f.module.declare("declare void @llvm.x86.sse2.pause()")
        f.raw("call void @llvm.x86.sse2.pause()")
    elif f.module.isa.arch == "aarch64":
        f.call("llvm.aarch64.hint", VOID, f.const(I32, 1))  # yield


def _futex(f: Function, op: int, value: Value) -> None:
    """futex(2) on the word, without a time-out."""
    syscall, number = f.load(PTR, f["control"], at.SYSCALL), f.load(I64, f["control"], at.FUTEX)
    args = f"i64 {number.name}, ptr {f['word'].name}, i32 {op}, i32 {value.name}, ptr null"
    f.op(I64, f"call i64 (i64, ...) {syscall.name}({args})")
