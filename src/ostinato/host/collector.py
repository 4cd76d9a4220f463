"""Python's collector of cycles, which needn't look at what a start makes: it stays."""

from __future__ import annotations

import gc
from types import TracebackType


class Starting:
    """A context without collections: a start makes some hundred thousand objects, and looking through them
    again and again while they become more takes a tenth of its time. Once it is over, later collections
    leave out what is there by then.

    For commands alone: what is garbage by then is never collected.
    """

    def __init__(self) -> None:
        self._collects = False

    def __enter__(self) -> Starting:
        self._collects = gc.isenabled()
        gc.disable()
        return self

    def over(self) -> None:
        """The start is over, if it wasn't."""
        if self._collects:
            self._collects = False
            gc.freeze()
            gc.enable()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.over()
