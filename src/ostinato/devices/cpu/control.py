"""The control block of a thread pool: what its threads tell each other, and what the native code must know.

It is lines of 128 bytes, since x86 fetches cache lines in pairs; each has one writer, but for the count of
watchers in the second half of a line. Addresses of C functions stand in it as data, so that the native code
is the same on every system.
"""

from __future__ import annotations

LINE = 128
WATCHERS = 64
"""i32, from a word that others wait for to the number of threads that sleep until it changes."""

# The line of a run, written by the caller.
GENERATION = 0  # i32, one more for each run; idle workers wait for it
STOP = 4  # i32
JOB = 8  # ptr

# A line that nobody writes while there are workers.
THREADS = LINE  # i64
SCRATCH = LINE + 8  # ptr, thread 0's
STRIDE = LINE + 16  # i64, from a thread's scratch memory to the next one's
PATIENCE = LINE + 24  # i64, turns of a thread's waiting loop at a barrier before it sleeps
LINGER = LINE + 32  # i64, the same of an idle worker
SYSCALL = LINE + 40  # address of `long syscall(long, ...)`, or 0 where there is no futex
FUTEX = LINE + 48  # i64, the number of futex(2)
WAKE = LINE + 56  # address of a C function without parameters that wakes idle workers, used without a futex
YIELD = LINE + 64  # address of one that lets other threads run, used at barriers without a futex

# A line for each thread, written by it.
LINES = 2 * LINE
ARRIVED = 0  # i32, counts the rounds of barriers that it has come to; others wait for it
SEEN = 4  # i32, the generation that it serves or has served
CALLERS_MODE = 8  # i32, the floating-point mode that it came with
MODE = 12  # i32, the one it works in
FAILURES = 16  # i32, how many times in a row it has run out of patience
WAITS = 20  # i32, at barriers
ASLEEP = 24  # i32, whether it is counted as a watcher of the generation while it sleeps outside native code


def nbytes(threads: int) -> int:
    """Size of the control block of so many threads."""
    return LINES + threads * LINE


def line(thread: int) -> int:
    """Where the line of a thread is."""
    return LINES + thread * LINE
