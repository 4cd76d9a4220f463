"""The entry point: what it returns, what it refuses, what stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ostinato.decode import kv_cache, request
from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.step import ATTENDED_LEN, CACHED_LEN, COUNT, OUT_ROWS, ROWS, build_step, step_env
from ostinato.decode.want import All, Argmax, Hidden, Last, Rows
from ostinato.device.traits import WritePath
from ostinato.devices.reference import lower
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import (
    CacheMismatch,
    CapacityExceeded,
    EmptyStep,
    IndexOutOfRange,
    InvalidTruncation,
    InvalidWant,
    RowOutOfRange,
    ShapeMismatch,
    TokenOutOfRange,
)
from ostinato.ir import DType, Location, SymId
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import plain
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.models.contract import Model
from ostinato.models.loader import load_model
from ostinato.plan.optimize import optimize
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry
from sabotage import goes_red, nothing

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def attended(cache: KvCache, context: InferenceContext) -> list[np.ndarray]:
    """The cells of all attended positions."""
    device = context.devices.device(context.location)
    cells = []
    for i, layer in enumerate(cache.geometry):
        for slab, dim in zip(cache.slabs(i), (layer.k_dim, layer.v_dim), strict=True):
            whole = device.download(slab, (layer.kv_heads, cache.capacity, dim))
            cells.append(whole[:, : cache.length])
    return cells


@pytest.fixture
def cache(tiny: Model, context: InferenceContext) -> KvCache:
    cache = KvCache.allocate(tiny, context, 16)
    forward_with_kv_context(tiny, TOKENS, cache, context)
    return cache


def test_want(tiny: Model, context: InferenceContext) -> None:
    def run(want: object) -> np.ndarray | int:
        fresh = KvCache.allocate(tiny, context, 16)
        result = forward_with_kv_context(tiny, TOKENS, fresh, context, want=want)  # type: ignore[call-overload]
        assert fresh.length == len(TOKENS)
        return result

    everything = run(All())
    assert isinstance(everything, np.ndarray)
    assert everything.shape == (8, 260)
    assert everything.dtype == np.float32
    np.testing.assert_allclose(run(Last()), everything[-1], atol=1e-6)
    np.testing.assert_allclose(run(Rows((5, 0, 5))), everything[[5, 0, 5]], atol=1e-6)
    assert run(Rows(())).shape == (0, 260)  # type: ignore[union-attr]
    assert run(Argmax()) == int(everything[-1].argmax())
    assert type(run(Argmax())) is int
    hidden = run(Hidden())
    assert isinstance(hidden, np.ndarray)
    assert hidden.shape == (8, 32)
    assert run(Last()).shape == (260,)  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", [Last, All, Hidden, Argmax])
def test_want_may_be_the_class(tiny: Model, context: InferenceContext, kind: type) -> None:
    results = []
    for want in (kind, kind()):
        fresh = KvCache.allocate(tiny, context, 16)
        results.append(forward_with_kv_context(tiny, TOKENS, fresh, context, want=want))
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("want", [None, "last", 0, Rows, [0]])
def test_anything_else_is_refused(
    tiny: Model, context: InferenceContext, cache: KvCache, want: object
) -> None:
    with pytest.raises(InvalidWant):
        forward_with_kv_context(tiny, [1], cache, context, want=want)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        forward_with_kv_context(tiny, [1], cache, context, want=Rows((0.5,)))  # type: ignore[arg-type]
    assert cache.length == len(TOKENS)


def test_positions_are_whole_numbers_and_never_shrink(cache: KvCache) -> None:
    for wrong in (4.5, "4", None):
        with pytest.raises(TypeError):
            cache.truncate_to(wrong)  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            cache.advance(wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidTruncation):
        cache.advance(-1)
    assert cache.length == len(TOKENS)


def test_a_layer_takes_slabs_like_its_own_alone(
    tiny: Model, context: InferenceContext, cache: KvCache
) -> None:
    device = context.devices.device(context.location)
    k, v = cache.slabs(0)
    small = device.allocate(4, DType.F32, k.encoding)
    half = device.allocate(k.nbytes // 2, DType.F16, plain(DType.F16))
    before = cache.alloc_id
    for layer, pair in ((0, (small, v)), (0, (k, half)), (2, (k, v)), (-1, (k, v))):
        with pytest.raises(CacheMismatch):
            cache.set_layer(layer, *pair)
    assert cache.alloc_id == before
    assert cache.slabs(0) == (k, v)


def test_a_residency_is_known_only_if_all_slabs_share_it(tiny: Model) -> None:
    devices = Registry()
    for ordinal in (0, 1):
        devices.register(ReferenceDevice(ordinal))
    cache = KvCache.allocate(tiny, InferenceContext("reference", devices), 4)
    k, v = cache.slabs(1)
    elsewhere = devices.device(Location("reference", 1)).allocate(v.nbytes // 4, DType.F32, v.encoding)
    cache.set_layer(1, k, elsewhere)
    assert cache.rebind_location() is None
    assert cache.rebind_slot(0, 2) is None
    assert cache.rebind_slot(0, -1) is None


def test_a_family_attends_in_its_layer_s_window(tiny: Model) -> None:
    other = replace(tiny.config, window=4)  # type: ignore[type-var]
    model = Model(tiny.family, _Lying(other, tiny.config.kv), tiny.weights, tiny.path)  # type: ignore[arg-type]
    with pytest.raises(ShapeMismatch, match="window"):
        build_step(model, 16, enc.F32, WritePath.DEVICE_OFFSET)


class _Lying:
    """A config whose KV geometry says another window than its blocks attend."""

    def __init__(self, config: object, kv: object) -> None:
        self._config = config
        self.kv = kv

    def __getattr__(self, name: str) -> object:
        return getattr(self._config, name)


def test_logits_are_the_caller_s(tiny: Model, context: InferenceContext, cache: KvCache) -> None:
    first = forward_with_kv_context(tiny, [7], cache, context)
    kept = first.copy()
    for _ in range(3):
        forward_with_kv_context(tiny, [8], cache, context)[:] = 0
    np.testing.assert_array_equal(first, kept)


REFUSED: dict[str, tuple[type[Exception], list[int], object]] = {
    "no token": (EmptyStep, [], Last()),
    "token too large": (TokenOutOfRange, [1, 260], Last()),
    "token negative": (TokenOutOfRange, [-1], Last()),
    "no number": (TypeError, ["a"], Last()),  # type: ignore[list-item]
    "overflow": (CapacityExceeded, [1] * 9, Last()),
    "row": (RowOutOfRange, [1, 2], Rows((0, 2))),
    "negative row": (RowOutOfRange, [1, 2], Rows((-1,))),
}
GUARDS = {
    "token too large": (request, "check_tokens", lambda model, tokens: np.asarray(tokens, np.int64)),
    "token negative": (request, "check_tokens", lambda model, tokens: np.asarray(tokens, np.int64)),
    "overflow": (KvCache, "check_room", nothing),
    "row": (request, "out_rows", lambda want, rows: getattr(want, "indices", (rows - 1,))),
    "negative row": (request, "out_rows", lambda want, rows: getattr(want, "indices", (rows - 1,))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_step_changes_nothing(
    tiny: Model, context: InferenceContext, cache: KvCache, name: str
) -> None:
    error, tokens, want = REFUSED[name]
    before, length, alloc_id = attended(cache, context), cache.length, cache.alloc_id
    with pytest.raises(error):
        forward_with_kv_context(tiny, tokens, cache, context, want=want)  # type: ignore[call-overload]
    assert (cache.length, cache.alloc_id) == (length, alloc_id)
    for old, new in zip(before, attended(cache, context), strict=True):
        np.testing.assert_array_equal(old, new)
    fresh = KvCache.allocate(tiny, context, 16)
    expected = forward_with_kv_context(tiny, [*TOKENS, 7], fresh, context)
    np.testing.assert_allclose(forward_with_kv_context(tiny, [7], cache, context), expected, atol=1e-5)


@pytest.mark.parametrize("name", GUARDS)
def test_without_the_guard_the_refusal_is_missed(
    tiny: Model, context: InferenceContext, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        cache = KvCache.allocate(tiny, context, 16)
        forward_with_kv_context(tiny, TOKENS, cache, context)
        test_a_refused_step_changes_nothing(tiny, context, cache, name)

    # the kernel refuses it, when the step has begun to run
    goes_red(monkeypatch, *GUARDS[name], check, expect=IndexOutOfRange)


def test_capacity_names_both_numbers(tiny: Model, context: InferenceContext, cache: KvCache) -> None:
    with pytest.raises(CapacityExceeded) as caught:
        forward_with_kv_context(tiny, [1] * 9, cache, context)
    assert (caught.value.needed, caught.value.capacity) == (17, 16)
    forward_with_kv_context(tiny, [1] * 8, cache, context)
    assert cache.length == 16
    with pytest.raises(CapacityExceeded):
        forward_with_kv_context(tiny, [1], cache, context)


@pytest.mark.parametrize("field", ["kv_heads", "k_dim", "v_dim", "window", "layers"])
def test_a_cache_of_another_geometry_is_refused(
    tiny: Model, context: InferenceContext, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def check() -> None:
        cache = KvCache.allocate(tiny, context, 16)
        if field == "layers":
            geometry = cache.geometry[:1]
        else:
            geometry = (cache.geometry[0], replace(cache.geometry[1], **{field: 4}))
        foreign = KvCache(geometry, 16, enc.F32, [cache.slabs(0), cache.slabs(1)])
        with pytest.raises(CacheMismatch, match=field):
            forward_with_kv_context(tiny, [1], foreign, context)
        assert foreign.length == 0

    goes_red(monkeypatch, request, "check_cache", nothing, check)


@pytest.mark.parametrize("at", [0, 40, 100, 200])
def test_a_failure_in_the_middle_leaves_the_cache_whole(
    tiny: Model, context: InferenceContext, cache: KvCache, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, length = attended(cache, context), cache.length
    with monkeypatch.context() as patch:
        plain = lower.Instruction
        made = []

        def failing(kernel: Callable[..., object], *rest: object) -> lower.Instruction:
            made.append(kernel)
            if len(made) == at + 1:
                return plain(boom, *rest)  # type: ignore[arg-type]
            return plain(kernel, *rest)  # type: ignore[arg-type]

        def boom(*_: object) -> None:
            raise IndexOutOfRange("injected", 1, 1)

        patch.setattr(lower, "Instruction", failing)
        with pytest.raises(IndexOutOfRange, match="injected"):
            forward_with_kv_context(tiny, [7, 7], cache, context)
    assert cache.length == length
    for old, new in zip(before, attended(cache, context), strict=True):
        np.testing.assert_array_equal(old, new)
    fresh = KvCache.allocate(tiny, context, 16)
    expected = forward_with_kv_context(tiny, [*TOKENS, 7], fresh, context)
    np.testing.assert_allclose(forward_with_kv_context(tiny, [7], cache, context), expected, atol=1e-5)


@pytest.mark.parametrize("path", WritePath)
def test_unattended_cells_may_hold_anything(
    tiny: Model, context: InferenceContext, cache: KvCache, path: WritePath
) -> None:
    other = KvCache.allocate(tiny, context, 16)
    forward_with_kv_context(tiny, TOKENS, other, context)
    for i in range(2):
        for slab in other.slabs(i):
            slab.parts[0].data.reshape(2, 16, 8)[:, len(TOKENS) :] = np.nan
    for token in (7, 8, 9):
        a = forward_with_kv_context(tiny, [token], cache, context, write_path=path)
        b = forward_with_kv_context(tiny, [token], other, context, write_path=path)
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("path", WritePath)
def test_the_same_graph_at_every_position(tiny: Model, path: WritePath) -> None:
    first, second = (build_step(tiny, 16, enc.F32, path) for _ in range(2))
    assert [str(node) for node in first.graph] == [str(node) for node in second.graph]
    # what a step is built from holds no position, no length and no row count: they are symbols or data
    symbols = {dim for node in first.graph for dim in node.shape if isinstance(dim, SymId)}
    assert symbols == {ROWS, OUT_ROWS}
    bound = set(step_env(5, 1, 1))
    assert bound == {ROWS, OUT_ROWS, CACHED_LEN, COUNT, ATTENDED_LEN}
    assert (first.start is None) == (path is WritePath.SYMBOLIC)


def test_every_step_builds_that_graph(
    tiny: Model, context: InferenceContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = []

    def recording(*arguments: object) -> object:
        step = build_step(*arguments)  # type: ignore[arg-type]
        built.append([str(node) for node in step.graph])
        return step

    monkeypatch.setattr(request, "build_step", recording)
    cache = KvCache.allocate(tiny, context, 16)
    for tokens, want in (([1, 2, 3], All()), ([4], Last()), ([5], Argmax()), ([6, 7], Hidden())):
        forward_with_kv_context(tiny, tokens, cache, context, want=want)  # type: ignore[call-overload]
    assert len(built) == 4
    assert all(nodes == built[0] for nodes in built)


def test_the_mask_is_in_every_graph_and_dead_in_this_family(tiny: Model, context: InferenceContext) -> None:
    step = build_step(tiny, 16, enc.F32, WritePath.DEVICE_OFFSET)
    node = step.graph[step.mask]
    assert isinstance(node.op, Const)
    assert (node.op.role, node.shape, node.dtype) == (ConstRole.DATA, (ROWS, 16), DType.F32)
    plan = optimize(
        step.graph, [step.logits], context.devices.snapshot(), default=context.location,
        bounds={ROWS: 1, OUT_ROWS: 1},
    )  # fmt: skip
    assert plan.dead_data == (step.mask,)
    assert step.mask not in plan.consts


def test_truncation_keeps_the_allocation_and_clear_ends_it(
    tiny: Model, context: InferenceContext, cache: KvCache
) -> None:
    first = cache.alloc_id
    expected = forward_with_kv_context(tiny, [7], cache, context)
    cache.truncate_to(len(TOKENS))
    assert cache.alloc_id == first
    np.testing.assert_array_equal(forward_with_kv_context(tiny, [7], cache, context), expected)
    for length in (-1, cache.length + 1):
        with pytest.raises(InvalidTruncation):
            cache.truncate_to(length)
    cache.set_layer(0, *cache.slabs(0))
    second = cache.alloc_id
    cache.clear()
    assert len({first, second, cache.alloc_id}) == 3
    assert cache.length == 0
    fresh = KvCache.allocate(tiny, context, 16)
    np.testing.assert_array_equal(
        forward_with_kv_context(tiny, TOKENS, cache, context),
        forward_with_kv_context(tiny, TOKENS, fresh, context),
    )


def test_allocation_ids_are_never_reused(tiny: Model, context: InferenceContext) -> None:
    assert len({KvCache.allocate(tiny, context, 1).alloc_id for _ in range(50)}) == 50
    with pytest.raises(CapacityExceeded):
        KvCache.allocate(tiny, context, 0)


def test_two_loads_of_one_file_are_two_models(tiny: Model, fixtures: Path) -> None:
    again = load_model(tiny.path)
    other = load_model(fixtures / "tiny-llama-llama3.gguf")
    assert len({tiny.shape_key, again.shape_key, other.shape_key}) == 3
    assert tiny.shape_key == tiny.shape_key
    assert again.config == tiny.config


def test_slabs_are_found_for_a_rebind(tiny: Model, context: InferenceContext) -> None:
    cache: kv_cache.KvRebindSource = KvCache.allocate(tiny, context, 4)
    assert cache.rebind_location() == context.location
    assert cache.rebind_slot(1, 1) is not None
    assert cache.rebind_slot(2, 0) is None
