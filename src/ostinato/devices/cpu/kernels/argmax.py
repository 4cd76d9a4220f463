"""The largest element's index, by numpy's rule: the lowest index among equals, and a NaN is larger than all.

A row is cut into chunks that threads search side by side. Who finishes the last one merges what all have
found, always in the order of the chunks, so the number of threads changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.emit.builder import Carried, Function, Value
from ostinato.devices.cpu.emit.types import F32V, I32, I32V, I64, LANES
from ostinato.devices.cpu.kernels.kernel import Kernel

_CHUNK = 4096
_GROUPS = 4  # each of 16 lanes with its own best: a compare waits for none of the other groups
_TURN = _GROUPS * LANES
_FOUND_BYTES = _GROUPS * 2 * F32V.nbytes
_COUNTER_BYTES = 64
_NONE = 2**31 - 1


@dataclass(frozen=True)
class ArgMaxRows(Kernel):
    """x [rows, n] float32 → out [rows] int64. There are rows · `chunks` items, those of a row together.

    `partials`: `partial_bytes` of each row. `counters`: 64 bytes of each row, all zero, and zero again after
    the last item.
    """

    n: int

    @property
    def params(self) -> tuple[str, ...]:
        return ("x", "out", "partials", "counters")

    @property
    def chunks(self) -> int:
        """Items of a row."""
        return -(-self.n // _CHUNK)

    @property
    def partial_bytes(self) -> int:
        """Bytes of `partials` for a row."""
        return self.chunks * _FOUND_BYTES

    def body(self, f: Function, args: dict[str, Value]) -> None:
        for item, _ in f.range(f["low"], f["high"]):
            row, chunk = item // self.chunks, item % self.chunks
            found = f.at(args["partials"], row * self.partial_bytes)
            counter = f.at(args["counters"], row * _COUNTER_BYTES)
            best = self._search(f, f.at(args["x"], row * (4 * self.n)), chunk)
            _store(f, best, f.at(found, chunk * _FOUND_BYTES))
            arrived = f.atomic_add(counter, 0, 1)
            for _ in f.when(arrived.eq(self.chunks - 1)):
                f.atomic_store(f.const(I32, 0), counter, order="monotonic")
                f.store(self._merge(f, found), args["out"], row * 8)

    def _search(self, f: Function, x: Value, chunk: Value) -> dict[str, Value]:
        """The best of each lane of a chunk."""
        start = chunk * _CHUNK
        whole = f.index(self.n // _TURN * _TURN)
        end = start + _CHUNK
        best = _nothing(f, start)
        for i, s in f.range(start, end.min(whole), _TURN, **best):
            _meet(f, s, i, [f.load(F32V, x, i * 4 + 64 * group) for group in range(_GROUPS)])
        best = {name: s[name] for name in best}
        tail = self.n % _TURN
        if tail:  # a loop of one turn in the last chunk, of none in the others
            last = chunk.eq(self.chunks - 1).cast("zext", I64)
            for _, s in f.range(0, last, 1, **best):
                _meet(f, s, whole, [_part(f, x, self.n - tail, tail - LANES * g, g) for g in range(_GROUPS)])
            best = {name: s[name] for name in best}
        return best

    def _merge(self, f: Function, found: Value) -> Value:
        """The index, from what every chunk of a row has found."""
        best = _load(f, found)
        for i, s in f.range(_FOUND_BYTES, self.partial_bytes, _FOUND_BYTES, **best):
            later = _load(f, f.at(found, i))
            for group in range(_GROUPS):
                _take(s, group, later[f"value{group}"], later[f"index{group}"])
        values = [s[f"value{group}"] for group in range(_GROUPS)]
        indices = [s[f"index{group}"] for group in range(_GROUPS)]
        numbers = [value.eq(value) for value in values]
        largest = f.const(F32V, float("-inf"))
        for number, value in zip(numbers, values, strict=True):
            largest = largest.max(number.select(value, float("-inf")))
        largest = f.broadcast(f.max(largest))
        none = f.const(I32V, _NONE)
        first_nan = _lowest(f, [n.select(none, index) for n, index in zip(numbers, indices, strict=True)])
        first = _lowest(
            f, [v.eq(largest).select(index, none) for v, index in zip(values, indices, strict=True)]
        )
        return first_nan.lt(_NONE).select(first_nan, first).cast("zext", I64)


def _nothing(f: Function, start: Value) -> dict[str, Value]:
    """-inf at each lane's first index: what a lane of nothing but -inf answers."""
    best = {}
    for group in range(_GROUPS):
        best[f"value{group}"] = f.const(F32V, float("-inf"))
        best[f"index{group}"] = _indices(f, start, group)
    return best


def _indices(f: Function, start: Value, group: int) -> Value:
    return f.broadcast(start.cast("trunc", I32)) + f.vector(I32V, range(LANES * group, LANES * (group + 1)))


def _part(f: Function, x: Value, first: int, left: int, group: int) -> Value:
    """A vector of the row's end, -inf where there is no element."""
    count = min(LANES, max(0, left))
    value = f.load_part(F32V, x, 4 * (first + LANES * group), count)
    return f.first_lanes(LANES, count).select(value, float("-inf"))


def _meet(f: Function, s: Carried, start: Value, values: list[Value]) -> None:
    for group, value in enumerate(values):
        _take(s, group, value, _indices(f, start, group))


def _take(s: Carried, group: int, value: Value, index: Value) -> None:
    """Lanes with a later value take it where it is larger, or the first NaN."""
    old = s[f"value{group}"]
    larger = (value.le(old) ^ 1) & old.eq(old)
    s[f"value{group}"] = larger.select(value, old)
    s[f"index{group}"] = larger.select(index, s[f"index{group}"])


def _store(f: Function, best: dict[str, Value], pointer: Value) -> None:
    for at, value in enumerate(best.values()):
        f.store(value, pointer, 64 * at)


def _load(f: Function, pointer: Value) -> dict[str, Value]:
    best = {}
    for group in range(_GROUPS):
        best[f"value{group}"] = f.load(F32V, pointer, 128 * group)
        best[f"index{group}"] = f.load(I32V, pointer, 128 * group + 64)
    return best


def _lowest(f: Function, indices: list[Value]) -> Value:
    lowest = indices[0]
    for index in indices[1:]:
        lowest = lowest.min(index)
    return -f.max(-lowest)
