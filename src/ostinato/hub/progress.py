"""A progress bar for those who watch, silence for all others."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


def watched(wanted: bool) -> bool:
    """Whether progress is wanted and someone sees it: standard error is a terminal."""
    return wanted and sys.stderr is not None and sys.stderr.isatty()


@contextlib.contextmanager
def bar(what: str, total: int, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    """A bar of `total` bytes on standard error; yields the function that is told the bytes done so far."""
    if not watched(wanted):
        yield lambda done: None
        return
    from tqdm import tqdm

    with tqdm(total=total, desc=what, unit="B", unit_scale=True, leave=False, file=sys.stderr) as shown:
        yield lambda done: shown.update(min(done, total) - shown.n)


def say(line: str, *, wanted: bool) -> None:
    """One line on standard error for those who watch."""
    if watched(wanted):
        print(line, file=sys.stderr, flush=True)
