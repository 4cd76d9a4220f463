"""Symbolic integers and their values for one pass."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ostinato.errors.graph import ConflictingSymbol, UnboundSymbol


@dataclass(frozen=True, slots=True)
class SymId:
    """A named integer that stands in a graph in place of a number; equal by name."""

    name: str

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


class SymEnv(Mapping[SymId, int]):
    """The values of symbols in one pass. Write-once: the same value again is fine, another is refused.

    >>> rows = SymId("rows")
    >>> SymEnv({rows: 3}).bind(rows, 3).resolve(rows)
    3
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[SymId, int] | None = None) -> None:
        self._values: dict[SymId, int] = dict(values or {})

    def bind(self, symbol: SymId, value: int) -> SymEnv:
        """Give `symbol` its value; raises ConflictingSymbol when it already has another."""
        bound = self._values.setdefault(symbol, value)
        if bound != value:
            raise ConflictingSymbol(symbol.name, bound, value)
        return self

    def resolve(self, extent: int | SymId) -> int:
        """The number behind an int or a symbol; raises UnboundSymbol."""
        if isinstance(extent, int):
            return extent
        try:
            return self._values[extent]
        except KeyError:
            raise UnboundSymbol(extent.name) from None

    def __getitem__(self, symbol: SymId) -> int:
        return self.resolve(symbol)

    def __iter__(self) -> Iterator[SymId]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        inner = ", ".join(f"{symbol}={value}" for symbol, value in self._values.items())
        return f"SymEnv({inner})"
