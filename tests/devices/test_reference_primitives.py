"""Each primitive of the shipped devices against numpy written independently of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from devices.running import const, run, slab, storage
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.reference import kernels
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import BindingMismatch, DeviceMismatch, IndexOutOfRange, NoKernel, OutOfDeviceMemory
from ostinato.ir import DType, Graph, Location, Operand, SymId, Tensor
from ostinato.ir.encoding import F32
from ostinato.ir.ops import PRIMITIVES
from ostinato.ir.ops.const import Const, Iota, Scalar, SymbolValue
from ostinato.ir.ops.movement import Clone, Copy
from ostinato.ir.ops.product import SelectedMatMul
from ostinato.ir.ops.slab import ReadPrefix, WriteSlice, WriteSliceDevice
from ostinato.runtime.context import InferenceContext
from sabotage import NOTICED, goes_red, nothing

RNG = np.random.default_rng(0)
A = RNG.standard_normal((3, 4)).astype(np.float32)
B = RNG.standard_normal((3, 4)).astype(np.float32)
IDS = np.array([2, 0, 2], np.int64)
TIES = np.array([[1, 5, 5], [7, 7, 0]], np.float32)
NANS = np.array([[1, np.nan, np.inf, np.nan], [-np.nan, np.nan, 0, 0], [0, 1, 2, np.nan]], np.float32)
INF_NAN = np.array([np.nan, -np.inf, np.inf, 0], np.float32)


def test_every_primitive_has_a_kernel() -> None:
    # Consts are bound and Copies are made by the runtime; every other primitive is a kernel's.
    assert set(kernels.KERNELS) == set(PRIMITIVES) - {Const, Copy}


CASES: dict[str, tuple[Callable[..., Tensor], list[np.ndarray], np.ndarray]] = {
    "add": (lambda a, b: a + b, [A, B], A + B),
    "add broadcast": (lambda a, b: a + b, [A, B[:1]], A + B[:1]),
    "sub": (lambda a, b: a - b, [A, B], A - B),
    "mul": (lambda a, b: a * b, [A, B], A * B),
    "mul number": (lambda a: a * 0.5, [A], A * np.float32(0.5)),
    "div": (lambda a, b: a / b, [A, B], A / B),
    "int add": (lambda a: a + 3, [IDS], IDS + 3),
    "less": (lambda a, b: a < b, [A, B], A < B),
    "less equal": (lambda a: a <= 2, [IDS], np.array([True, True, True])),
    "and": (lambda a, b: (a < b) & (a <= 0.0), [A, B], (A < B) & (A <= 0)),
    "where": (lambda a, b: (a < 0.0).where(b, 7.0), [A, B], np.where(A < 0, B, np.float32(7))),
    "where selects": (lambda x: (x < 1.0).where(0.0, x), [INF_NAN], np.float32([np.nan, 0, np.inf, 0])),
    "neg": (lambda a: -a, [A], -A),
    "exp": (lambda a: a.exp(), [A], np.exp(A)),
    "tanh": (lambda a: a.tanh(), [A], np.tanh(A)),
    "sqrt": (lambda a: (a * a).sqrt(), [A], np.abs(A)),
    "cast": (lambda a: a.cast(DType.F16).cast(DType.F32), [A], A.astype(np.float16).astype(np.float32)),
    "sum": (lambda a: a.sum(0), [A], A.astype(np.float64).sum(0, keepdims=True).astype(np.float32)),
    "max": (lambda a: a.max(), [A], A.max(1, keepdims=True)),
    "argmax takes the lowest": (lambda a: a.argmax(), [TIES], np.array([1, 0])),
    "argmax takes the first NaN": (lambda a: a.argmax(), [NANS], np.array([1, 0, 3])),
    "reshape": (lambda a: a.reshape(2, 6), [A], A.reshape(2, 6)),
    "transpose": (lambda a: a.transpose(1, 0), [A], A.T),
    "unsqueeze": (lambda a: a.unsqueeze(1), [A], A[:, None]),
    "squeeze": (lambda a: a.slice(0, 1, 2).squeeze(0), [A], A[1]),
    "slice": (lambda a: a.slice(-1, 1, 3), [A], A[:, 1:3]),
    "concat": (lambda a, b: a.concat([b], axis=-1), [A, B], np.hstack([A, B])),
    "gather": (lambda a, i: a.gather(i), [A, IDS], A[[2, 0, 2]]),
    "matmul": (lambda a, b: a @ b.transpose(1, 0), [A, B], np.einsum("ik,jk->ij", A, B)),
    "clone": (lambda a: a.apply(Clone()), [A], A),
    "selected matmul": (
        lambda a, b: (a <= 9.0).apply(SelectedMatMul(), a, b.transpose(1, 0).slice(1, 0, 2)),
        [A, B],
        A @ B[:2].T,
    ),
    "iota": (
        lambda i, a: a.gather(i.apply(Iota(Operand(0)))).sum(0),
        [np.array(2, np.int64), A],
        A[:2].sum(0)[None],
    ),
    "scalar": (lambda a: a.graph.apply(Scalar(2.5, DType.F32)), [A], np.float32(2.5)),
    "prefix": (
        lambda a, n: a.apply(ReadPrefix(Operand(1)), n).sum(0),
        [A, np.array(2, np.int64)],
        A[:2].sum(0)[None],
    ),
}  # fmt: skip


NOT_ON_CPU = ("selected matmul", "iota", "prefix")
"""What only attention is defined by, where an extent is known to the run alone."""


@pytest.mark.parametrize("name", CASES)
def test_primitive(anywhere: InferenceContext, name: str) -> None:
    write, arrays, expected = CASES[name]
    graph = Graph()
    data = [const(graph, array) for array in arrays]
    result = write(*(tensor for tensor, _ in data))
    if name in NOT_ON_CPU and anywhere.location.kind == "cpu":
        with pytest.raises(NoKernel):
            run(anywhere, result, *data)
        return
    got = run(anywhere, result, *data)
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-6)


def test_float64_accumulation(context: InferenceContext) -> None:
    # float32 sums lose the ones behind 2**24
    graph = Graph()
    x = np.concatenate([[2.0**24], np.ones(64)]).astype(np.float32)
    tensor, _ = const(graph, x)
    assert run(context, tensor.sum(), (tensor, x))[0] == 2**24 + 64


def test_symbols_reach_the_kernels(anywhere: InferenceContext) -> None:
    graph, rows, n = Graph(), SymId("rows"), SymId("n")
    tensor, value = const(graph, A, rows, 4)
    result = tensor.reshape(rows, 2, 2).sum(2)
    assert run(anywhere, result, (tensor, value), env={rows: 3}).shape == (3, 2, 1)
    total = graph.apply(SymbolValue(n)) + graph.apply(SymbolValue(n))
    assert run(anywhere, total, env={n: 4}) == 8
    assert run(anywhere, graph.apply(Iota(n)), env={n: 3}).tolist() == [0, 1, 2]


def write_rows(
    context: InferenceContext,
    cells: np.ndarray,
    rows: np.ndarray,
    start: int,
    count: int,
    by_symbol: bool,
    role: str = "k",
) -> np.ndarray:
    """Write `rows` into the slab of `cells`, which change, by either of the two ops."""
    graph = Graph()
    target = slab(context, graph, cells, role)
    source, _ = const(graph, rows)
    if by_symbol:
        at, n = SymId("start"), SymId("count")
        written = target.apply(WriteSlice(at, n), source)
        return run(context, written, (source, rows), slabs={target: cells}, env={at: start, n: count})
    at, n = const(graph, np.array(start, np.int64)), const(graph, np.array(count, np.int64))
    written = target.apply(WriteSliceDevice(), source, at[0], n[0])
    return run(context, written, (source, rows), at, n, slabs={target: cells})


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("by_symbol", [False, True])
@pytest.mark.parametrize("role", ["k", "v"])
def test_a_write_touches_its_rows_alone(
    anywhere: InferenceContext, dtype: type, by_symbol: bool, role: str
) -> None:
    before = RNG.standard_normal((1, 2, 8, 3)).astype(dtype)
    rows = RNG.standard_normal((4, 2, 3)).astype(np.float32)
    cells = before.copy()
    after = write_rows(anywhere, cells, rows, 3, 2, by_symbol, role)
    expected = before.copy()
    for row in range(2):  # rows ≥ count are never written
        expected[0, :, 3 + row] = rows[row].astype(dtype)
    np.testing.assert_array_equal(cells, expected)
    np.testing.assert_array_equal(after, expected)


@pytest.mark.parametrize("by_symbol", [False, True])
@pytest.mark.parametrize(("start", "count"), [(7, 2), (-1, 1), (9, 1), (0, 5), (2, -1)])
def test_a_write_out_of_range_writes_nothing(
    anywhere: InferenceContext, start: int, count: int, by_symbol: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        for role in "kv":
            cells = np.zeros((1, 2, 8, 3), np.float32)
            with pytest.raises(IndexOutOfRange):
                write_rows(anywhere, cells, np.ones((4, 2, 3), np.float32), start, count, by_symbol, role)
            assert not cells.any()

    if anywhere.location.kind != "reference":
        check()
        return
    # numpy refuses some of these spans itself, in its own words
    goes_red(monkeypatch, kernels, "check_span", nothing, check, expect=(*NOTICED, ValueError))


def test_a_gather_out_of_range_is_refused(
    anywhere: InferenceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        for row in (-1, 3):
            graph = Graph()
            table, rows = const(graph, A), const(graph, np.array([0, row], np.int64))
            with pytest.raises(IndexOutOfRange, match=str(row)):
                run(anywhere, table[0].gather(rows[0]), table, rows)

    if anywhere.location.kind != "reference":
        check()
        return
    goes_red(monkeypatch, kernels, "check_rows", lambda op, rows, size: rows, check)


def test_a_prefix_past_the_end_is_refused(context: InferenceContext) -> None:
    graph, n = Graph(), SymId("n")
    table = const(graph, A)
    with pytest.raises(IndexOutOfRange):
        run(context, table[0].apply(ReadPrefix(n)), table, env={n: 4})


DEVICES: dict[str, Callable[..., Any]] = {"reference": ReferenceDevice, "cpu": CpuDevice}


@pytest.mark.parametrize("kind", DEVICES)
def test_storage_moves_and_copies(kind: str) -> None:
    device = DEVICES[kind](3)
    uploaded = device.upload(A, DType.F32)
    assert uploaded.location == Location(kind, 3)
    assert uploaded.nbytes == A.nbytes
    target = device.allocate(A.size, DType.F32, uploaded.encoding)
    assert not device.download(target, A.shape).any()
    device.copy(uploaded, target)
    down = device.download(target, A.shape)
    down[:] = 0  # the caller's own
    np.testing.assert_array_equal(device.download(target, A.shape), A)
    device.write(B[:2], target)
    with pytest.raises(BindingMismatch, match="extent"):
        device.write(np.ones(13, np.float32), target)
    np.testing.assert_array_equal(device.download(target, A.shape), np.concatenate([B[:2], A[2:]]))
    with pytest.raises(TypeError):
        device.upload(A.astype(np.float64), DType.F32)
    assert storage(A).bundling == ("values",)


@pytest.mark.parametrize("kind", DEVICES)
def test_storages_of_other_devices_are_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device, other = DEVICES[kind](), DEVICES[kind](1)
    mine, theirs = device.upload(A, DType.F32), other.upload(A, DType.F32)

    def check() -> None:
        for use in (
            lambda: device.download(theirs, A.shape),
            lambda: device.copy(theirs, mine),
            lambda: device.copy(mine, theirs),
            lambda: device.write(A, theirs),
        ):
            with pytest.raises(DeviceMismatch, match=f"{kind}:1"):
                use()

    goes_red(monkeypatch, DEVICES[kind], "_check", nothing, check)


@pytest.mark.parametrize("elements", [10**15, 2**62, 2**70])
@pytest.mark.parametrize("kind", DEVICES)
def test_too_much_memory_is_a_typed_error(kind: str, elements: int) -> None:
    with pytest.raises(OutOfDeviceMemory) as caught:
        DEVICES[kind](2).allocate(elements, DType.F32, F32)
    assert isinstance(caught.value, MemoryError)
    assert caught.value.fields() == {"location": f"{kind}:2", "nbytes": 4 * elements}
