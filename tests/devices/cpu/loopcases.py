"""Cases of one primitive over views: run as loop kernels, compared with the reference device's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from devices.cpu.running import Kernels, aligned, at_page_end
from ostinato.devices.cpu.kernels.loopnest import loop_kernel
from ostinato.devices.cpu.kernels.loops.base import LoopKernel
from ostinato.devices.cpu.views import Stride, View, contiguous, moved, times
from ostinato.devices.reference.kernels import KERNELS
from ostinato.ir import ConstRole, DType, Graph, SymEnv, SymId
from ostinato.ir.op import Op, Primitive
from ostinato.ir.shape import Shape

ROWS, COLS = SymId("rows"), SymId("cols")
Env = dict[SymId, int]
Fill = Callable[[np.random.Generator, DType, int], np.ndarray]
MARGIN = 64
CANARY = 0xA5


def number(value: Stride, env: Env) -> int:
    """A stride or offset in numbers."""
    return value if isinstance(value, int) else value[0] * prod(env[symbol] for symbol in value[1:])


def extents(shape: Shape, env: Env) -> tuple[int, ...]:
    return tuple(number(times(extent), env) for extent in shape)


def places(view: View, env: Env) -> np.ndarray:
    """Where in its buffer each element of a view is."""
    shape = extents(view.shape, env)
    index = np.full(shape, number(view.offset, env), np.int64)
    for axis, stride in enumerate(view.strides):
        steps = np.arange(shape[axis]) * number(stride, env)
        index += steps.reshape([-1 if at == axis else 1 for at in range(len(shape))])
    return index


@dataclass(frozen=True)
class Given:
    """A buffer that is `shape` in row-major order, and the view of it that `moves` make."""

    shape: Shape
    dtype: DType = DType.F32
    moves: tuple[Op, ...] = ()

    @cached_property
    def view(self) -> View:
        view = contiguous(self.shape, self.dtype)
        for op in self.moves:
            after = moved(op, view)
            assert after is not None
            view = after
        return view


def given(*shape: int | SymId, dtype: DType = DType.F32, moves: Sequence[Op] = ()) -> Given:
    return Given(shape, dtype, tuple(moves))


@dataclass(frozen=True)
class Case:
    """A primitive over operands; the output is row-major unless `output` says where it is."""

    op: Primitive
    operands: tuple[Given, ...] = ()
    output: Given | None = None
    envs: tuple[tuple[tuple[SymId, int], ...], ...] = ((),)

    @cached_property
    def target(self) -> Given:
        if self.output is not None:
            return self.output
        graph = Graph()
        inputs = [graph.const("x", ConstRole.DATA, one.view.shape, one.dtype) for one in self.operands]
        result = graph.apply(self.op, *inputs)
        return Given(result.shape, result.dtype)

    @cached_property
    def kernel(self) -> LoopKernel:
        kernel = loop_kernel(self.op, [one.view for one in self.operands], self.target.view)
        assert kernel is not None
        return kernel

    def __str__(self) -> str:
        shapes = " ".join(str(list(map(str, one.view.shape))) for one in self.operands).replace("'", "")
        return f"{self.op.name} {shapes}"


def case(op: Primitive, *operands: Given, output: Given | None = None, envs: Sequence[Env] = ({},)) -> Case:
    return Case(op, operands, output, tuple(tuple(env.items()) for env in envs))


def items(kernel: LoopKernel, env: Env) -> int:
    base, symbol, divisor = kernel.work()
    return base if symbol is None else base * -(-env[symbol] // divisor)


def splits(count: int) -> Iterator[list[tuple[int, int]]]:
    """All at once; one by one from the last; in uneven parts."""
    yield [(0, count)]
    yield [(i, i + 1) for i in reversed(range(count))]
    yield [(low, min(low + 3, count)) for low in range(0, count, 3)]


def run_kernel(
    kernels: Kernels,
    kernel: LoopKernel,
    env: Env,
    buffers: Sequence[np.ndarray],
    target: Given,
    parts: Sequence[tuple[int, int]],
    error: np.ndarray | None = None,
) -> np.ndarray:
    """The output's elements. Fails where a kernel writes a byte that is none of theirs."""
    size = prod(extents(target.shape, env)) * target.dtype.nbytes
    whole = aligned(size + 2 * MARGIN, np.uint8)
    whole[:] = CANARY
    out = whole[MARGIN : MARGIN + size]
    cells = {str(symbol): np.array([env[symbol]]) for symbol in kernel.symbols}
    record = np.zeros(3, np.int64) if error is None else error
    named = {f"in{i}": buffer for i, buffer in enumerate(buffers)}
    named |= {"out": out, "error": record, **cells}
    args = [7 if name == "code_n" else named[name] for name in kernel.params]
    for low, high in parts:
        kernels.run(kernel, args, low, high)
    if error is None:
        assert not record.any()
    elements = out.view(target.dtype.numpy)
    at = places(target.view, env)
    result = elements[at]
    elements[at.reshape(-1)] = np.frombuffer(bytes([CANARY] * target.dtype.nbytes), target.dtype.numpy)
    assert (whole == CANARY).all(), "wrote outside of the output"
    return result


def results(kernels: Kernels, case: Case, env: Env, fill: Fill) -> tuple[np.ndarray, np.ndarray]:
    """What the loop kernel gives, the same for every split of its items, and what the reference has.

    Fails where an element is nobody's work, or that of two items."""
    rng = np.random.default_rng(len(str(case)))
    buffers = [fill(rng, one.dtype, prod(extents(one.shape, env))) for one in case.operands]
    arrays = [buffer[places(one.view, env)] for one, buffer in zip(case.operands, buffers, strict=True)]
    with np.errstate(all="ignore"):
        expected = KERNELS[type(case.op)](case.op, SymEnv(env), *arrays)
    guarded = [at_page_end(buffer) for buffer in buffers]
    first = None
    for parts in splits(items(case.kernel, env)):
        result = run_kernel(kernels, case.kernel, env, guarded, case.target, parts)
        first = result if first is None else first
        assert result.tobytes() == first.tobytes(), "bits depend on how the items are split"
    assert first is not None
    if items(case.kernel, env) <= 64:
        canary = bytes([CANARY] * case.target.dtype.nbytes)
        written = np.zeros(first.shape, np.int64)
        for item in range(items(case.kernel, env)):
            part = run_kernel(kernels, case.kernel, env, guarded, case.target, [(item, item + 1)])
            written += part.view(f"S{len(canary)}") != canary if part.ndim else part.tobytes() != canary
        assert (written == 1).all()
    assert first.shape == expected.shape
    assert first.dtype == expected.dtype
    return first, expected


def same_bits(result: np.ndarray, expected: np.ndarray) -> None:
    """Equal, signs of zeros too; NaN is NaN."""
    np.testing.assert_array_equal(result, expected)
    if result.dtype.kind == "f":
        number = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(result[number]), np.signbit(expected[number]))


def ulps(result: np.ndarray, exact: np.ndarray) -> float:
    """The largest error in units of the last place of the float32 next to the exact value."""
    if exact.size == 0:
        return 0.0
    near = np.abs(exact.astype(np.float32))
    unit = np.maximum(np.spacing(near), np.float32(2.0**-149)).astype(np.float64)
    return float(np.max(np.abs(result.astype(np.float64) - exact) / unit))


def anything(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    """Numbers of every kind, infinities, NaN and both zeros among the floats."""
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype is DType.I64:
        return rng.choice([rng.integers(-5, 6, count), rng.integers(-(2**62), 2**62, count)])
    values = (rng.standard_normal(count) * 10.0 ** rng.integers(-6, 5, count)).astype(np.float32)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, 3.4e38], np.float32)
    chosen = rng.random(count) < 0.1
    values[chosen] = rng.choice(special, int(chosen.sum()))
    with np.errstate(over="ignore"):
        return values.astype(dtype.numpy)


def ordinary(rng: np.random.Generator, dtype: DType, count: int) -> np.ndarray:
    """Numbers about as large as 1."""
    if dtype.is_float:
        return rng.standard_normal(count).astype(dtype.numpy)
    return anything(rng, dtype, count)
