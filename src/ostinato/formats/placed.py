"""What the tensors of all model files have in common."""

from __future__ import annotations

from typing import Protocol

from ostinato.ir.encoding import Encoding


class Placed(Protocol):
    """A tensor's name and its byte range in its file."""

    @property
    def name(self) -> str: ...
    @property
    def offset(self) -> int: ...
    @property
    def nbytes(self) -> int: ...


class StoredTensor(Placed, Protocol):
    """A tensor whose bytes can be read: `shape` is row-major, `encoding` says how its rows are stored."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def encoding(self) -> Encoding: ...
