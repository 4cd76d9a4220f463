"""What is open until it is closed: by hand, or at the end of a `with` block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self


class Closeable(ABC):
    """A context manager that gives itself, and closes itself at the block's end."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of what is held; closing twice is fine."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
