"""Before memory is measured: nothing that other tests left running takes any meanwhile."""

from __future__ import annotations

import threading


def settled() -> None:
    """Timers are over: a second after the last kernel was compiled, one reads megabytes of /proc to let go of
    LLVM's pages."""
    for thread in threading.enumerate():
        if isinstance(thread, threading.Timer):
            thread.join(60)
            assert not thread.is_alive()
