"""What can be wrong with a graph, its symbols or what is bound to it."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError


@dataclass(eq=False, repr=False)
class ShapeMismatch(OstinatoError, ValueError):
    """An op was given operands whose shapes don't fit its rule; raised where the op is written."""

    op: str
    expected: str
    got: str

    def message(self) -> str:
        return f"{self.op}: expected shape {self.expected}, got {self.got}"


@dataclass(eq=False, repr=False)
class DTypeMismatch(OstinatoError, TypeError):
    """An op was given operands of a type outside its rule; raised where the op is written."""

    op: str
    expected: str
    got: str

    def message(self) -> str:
        return f"{self.op}: expected dtype {self.expected}, got {self.got}"

    @property
    def remedy(self) -> str:
        return "Convert the operand with cast()."


@dataclass(eq=False, repr=False)
class GraphMixed(OstinatoError, ValueError):
    """Operands of one op come from two graphs."""

    op: str
    expected: int
    got: int

    def message(self) -> str:
        return f"{self.op}: operands belong to graphs {self.expected} and {self.got}"

    @property
    def remedy(self) -> str:
        return "Build every operand in the same Graph."


@dataclass(eq=False, repr=False)
class UnboundSymbol(OstinatoError, KeyError):
    """A symbolic integer was needed before it had a value."""

    symbol: str

    def message(self) -> str:
        return f"the symbol {self.symbol!r} has no value in this pass"


@dataclass(eq=False, repr=False)
class ConflictingSymbol(OstinatoError, ValueError):
    """A symbol was bound twice with different values in one pass."""

    symbol: str
    bound: int
    got: int

    def message(self) -> str:
        return f"the symbol {self.symbol!r} is already {self.bound} in this pass and can't become {self.got}"


@dataclass(eq=False, repr=False)
class UnboundConst(OstinatoError, KeyError):
    """A live Const has no data."""

    const: str
    role: str

    def message(self) -> str:
        return f"the {self.role} {self.const!r} is read by the plan but nothing is bound to it"


@dataclass(eq=False, repr=False)
class BindingMismatch(OstinatoError, ValueError):
    """What is bound to a Const differs from what the Const declares: `field` says in which respect."""

    const: str
    field: str
    expected: str
    got: str

    def message(self) -> str:
        return f"{self.const!r} was declared with {self.field} {self.expected}, bound with {self.got}"


@dataclass(eq=False, repr=False)
class WriteConflict(OstinatoError, ValueError):
    """Two in-place writes start from the same state of a slab, which can only become one of them."""

    slab: str
    first: str
    second: str

    def message(self) -> str:
        return f"{self.first} and {self.second} both write into the same state of {self.slab!r}"

    @property
    def remedy(self) -> str:
        return "Let the second write into the slab that the first one returned."


@dataclass(eq=False, repr=False)
class DataDependentExtent(OstinatoError, ValueError):
    """A value whose shape only the run knows was to leave its segment; nothing can hold a place for it."""

    value: str
    shape: str

    def message(self) -> str:
        return f"the shape {self.shape} of {self.value} is known only inside a run"

    @property
    def remedy(self) -> str:
        return "Give it a length that is a number or a symbol, or reduce that axis on the same device."


@dataclass(eq=False, repr=False)
class NoValueYet(OstinatoError, TypeError):
    """A Tensor was used where Python needs its values: it is a node of a graph and holds none."""

    use: str

    def message(self) -> str:
        return f"a Tensor holds no data and can't be {self.use}"

    @property
    def remedy(self) -> str:
        return "Select with where(), take parts with slice() or [i]; realise the graph for values."
