"""Loops and branches of the emitted language, as generators: the body of `for` is the body in the IR."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from ostinato.devices.cpu.emit.types import I1, I64
from ostinato.devices.cpu.emit.value import Carried, Value

if TYPE_CHECKING:
    from ostinato.devices.cpu.emit.builder import Function


class Flow:
    """The part of a `Function` that jumps."""

    _counter: int
    _block: str
    _lines: list[str]

    @property
    def _whole(self) -> Function:
        """Itself: nothing but a Function is a Flow."""
        return cast("Function", self)

    def label(self) -> str:
        self._counter += 1
        return f"b{self._counter}"

    def begin(self, label: str) -> None:
        self._lines.append(f"{label}:")
        self._block = label

    def range(
        self, low: Value | int, high: Value | int, step: int = 1, **carried: Value
    ) -> Iterator[tuple[Value, Carried]]:
        """A counted loop, `for i, s in f.range(0, n, total=zero): s.total = s.total + …`.

        `i` is an i64 below `high` (compared as signed). Assign every carried value's next state to `s`; after
        the loop `s` has the last ones.
        """
        f = self._whole
        start, stop = f.index(low), f.index(high)
        loop = _Loop(f, {"": start, **carried})
        i = loop.phis[""]
        inside = i.lt(stop)
        f.raw(f"br i1 {inside.name}, label %{loop.body}, label %{loop.after}")
        f.begin(loop.body)
        state = Carried({name: loop.phis[name] for name in carried})
        yield i, state
        following = f.op(I64, f"add nsw i64 {i.name}, {step}")
        loop.end({"": following, **{name: state[name] for name in carried}})
        for name in carried:
            state[name] = loop.phis[name]

    def until(self, done: Callable[[Carried], Value], **carried: Value) -> Iterator[Carried]:
        """A loop that tests before each turn, `for s in f.until(lambda s: s.n.ge(9), n=zero): s.n = s.n + 1`.

        It ends when the i1 `done(s)` holds. As in `range`, assign every carried value's next state to `s`;
        after the loop `s` has the last ones.
        """
        f = self._whole
        loop = _Loop(f, carried)
        state = Carried(dict(loop.phis))
        over = done(state)
        f.raw(f"br i1 {over.name}, label %{loop.after}, label %{loop.body}")
        f.begin(loop.body)
        yield state
        loop.end({name: state[name] for name in carried})
        for name in carried:
            state[name] = loop.phis[name]

    def when(self, condition: Value) -> Iterator[None]:
        """`for _ in f.when(c): …` runs the body where the i1 `c` holds; no value leaves it."""
        f = self._whole
        body, after = f.label(), f.label()
        f.raw(f"br i1 {condition.name}, label %{body}, label %{after}")
        f.begin(body)
        yield
        f.raw(f"br label %{after}")
        f.begin(after)

    def seldom(
        self,
        condition: Value,
        values: Sequence[Value],
        change: Callable[[list[Value]], list[Value]],
    ) -> list[Value]:
        """`change(values)` where the i1 `condition` holds, else the values; its code is out of the way."""
        f = self._whole
        before, body, after = f._block, f.label(), f.label()
        condition = f.intrinsic("expect", condition, f.const(I1, 0))
        f.raw(f"br i1 {condition.name}, label %{body}, label %{after}")
        f.begin(body)
        changed = change(list(values))
        end = f._block
        f.raw(f"br label %{after}")
        f.begin(after)
        return [
            f.op(new.type, f"phi {new.type} [ {new.name}, %{end} ], [ {old.name}, %{before} ]")
            for new, old in zip(changed, values, strict=True)
        ]

    def choose(self, condition: Value, yes: Callable[[], Value], no: Callable[[], Value]) -> Value:
        """The value of `yes()` or of `no()`; only the one chosen runs."""
        f = self._whole
        a, b, after = f.label(), f.label(), f.label()
        f.raw(f"br i1 {condition.name}, label %{a}, label %{b}")
        f.begin(a)
        left = yes()
        left_end = f._block
        f.raw(f"br label %{after}")
        f.begin(b)
        right = no()
        right_end = f._block
        f.raw(f"br label %{after}")
        f.begin(after)
        return f.op(
            left.type, f"phi {left.type} [ {left.name}, %{left_end} ], [ {right.name}, %{right_end} ]"
        )


class _Loop:
    """A loop being written: its head with a phi for each value that it carries, begun and not yet tested."""

    def __init__(self, f: Function, carried: Mapping[str, Value]) -> None:
        self._f, self._carried, self._before = f, carried, f._block
        self._head, self.body, self.after = f.label(), f.label(), f.label()
        f.raw(f"br label %{self._head}")
        f.begin(self._head)
        self.phis = {name: Value(f, value.type, f.fresh()) for name, value in carried.items()}
        self._slot = len(f._lines)
        f._lines.append("")  # the phis, once the loop's end is known

    def end(self, last: Mapping[str, Value]) -> None:
        """The body is written, and these are the values of the next turn."""
        f, lines = self._f, []
        for name, phi in self.phis.items():
            value, first = last[name], self._carried[name]
            assert value.type == phi.type, f"{name}: {phi.type} becomes {value.type}"
            sources = f"[ {first.name}, %{self._before} ], [ {value.name}, %{f._block} ]"
            lines.append(f"  {phi.name} = phi {phi.type} {sources}")
        f._lines[self._slot] = "\n".join(lines)
        f.raw(f"br label %{self._head}")
        f.begin(self.after)
