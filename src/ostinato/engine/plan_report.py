"""What a model's held decode plan is: planned here as the token loop would, told as data."""

from __future__ import annotations

import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from itertools import groupby
from math import prod
from types import FunctionType
from typing import Any, cast

import numpy as np

from ostinato import devices, hub
from ostinato.decode.capture import CapturedDecodeSession
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.rebind import RefusalReason
from ostinato.decode.session import DecodeSession
from ostinato.decode.shelf import PlanShelf
from ostinato.decode.step import build_step, placement_hints
from ostinato.decode.validity import PlanStructure
from ostinato.device.contract import CaptureRefusal, Device
from ostinato.device.encoded import EncodedTensor
from ostinato.device.segment import Segment
from ostinato.device.storage import Storage
from ostinato.device.traits import WritePath
from ostinato.engine.llm import DEFAULT_CONTEXT, KV_DTYPES, location_of
from ostinato.engine.opened import open_model
from ostinato.engine.plan_facts import (
    ONE_ROW,
    CopyRow,
    InputRow,
    Memory,
    Part,
    copies,
    inputs,
    memory,
    schedule,
)
from ostinato.generate.settings import check_choice
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.ir.ops.region import Region
from ostinato.ir.recipe import PackRecipe
from ostinato.models.contract import LayerKv, Model, ShapeKey
from ostinato.plan.optimize import optimize
from ostinato.plan.optimized import OptimizedGraph
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry, registry

TRIAL_POSITIONS = 16
"""Capacity of the cache over which a capture is tried."""
TIMED_RUNS = 3
"""Plans made for the times; the fastest counts, so that a pause of the collector doesn't."""

KEY_MEANINGS: Mapping[str, str] = {
    "max_seq_len": "positions of the KV cache: the slabs' shape stands in the plan",
    "n_layers": "layers of the cache",
    "cache_dtype": "what the KV slabs store",
    "shape_key": "the model: family, this load of its weights, and every number of its config",
    "kv_geometry": "KV heads, head widths and window, layer by layer",
    "locations": "the device of what nothing ties to one, then those of each layer's K and V",
    "write_path": "how a KV write learns its position",
}

REFUSALS: Mapping[RefusalReason, str] = {
    RefusalReason.RESIDENCY_UNKNOWN: "the new cache can't name one device for all its slabs",
    RefusalReason.RESIDENCY_DIFFERS: "a slab is on another device than the one under the plan",
    RefusalReason.MISSING_SLOT: "the new cache lacks a K or V slab that the plan reads",
    RefusalReason.UNBAKED_SLOT: "the plan holds no slab in that place to compare with",
    RefusalReason.STORAGE_DIFFERS: "a slab's dtype, encoding, parts or bytes differ from the one it replaces",
}


@dataclass(frozen=True)
class KeyRow:
    field: str
    value: str
    meaning: str


@dataclass(frozen=True)
class PlanReport:
    """The held decode plan of one model, cache geometry and placement.

    `segments` are (device, ops) of each compiled unit in order; `regions` counts the ops that hold others, by
    pattern; `milliseconds` by what was timed; `capture_refusal` is None where the plan can be captured.
    """

    model: str
    devices: tuple[str, ...]
    context: int
    nodes: int
    consts: int
    segments: tuple[tuple[str, int], ...]
    schedule: tuple[Part, ...]
    regions: Mapping[str, int]
    copies: tuple[CopyRow, ...]
    memory: Memory
    inputs: tuple[InputRow, ...]
    symbols: tuple[str, ...]
    key: tuple[KeyRow, ...]
    refusals: Mapping[str, str]
    milliseconds: Mapping[str, float]
    capture_refusal: str | None

    @property
    def rebound_bytes(self) -> int:
        """Bytes uploaded for every token."""
        return sum(row.bytes for row in self.inputs if row.when == "every token")

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rebound_bytes": self.rebound_bytes}


class _Unpacked:
    """A device that makes room for weights and doesn't fill it: a plan needs none of their bytes."""

    def __init__(self, device: Device) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def pack(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor]) -> Storage:
        layout = self._device.traits.layout(tensors[0].encoding, len(tensors[0].shape))
        assert layout is not None, "the plan had one"
        shape = (sum(t.shape[0] for t in tensors), *tensors[0].shape[1:])
        filled_up = -(-layout.nbytes(shape) // DType.F32.nbytes)
        return self._device.allocate(max(prod(shape), filled_up), DType.F32, layout.stored)


def explain(
    model: str,
    *,
    device: str | None = None,
    context: int | None = None,
    kv_dtype: str | None = None,
    progress: bool = False,
) -> PlanReport:
    """The report of a model by reference; raises what `LLM` does, NotEnoughMemory aside."""
    location = location_of(device)
    check_choice("kv_dtype", kv_dtype, KV_DTYPES)
    devices.register_defaults(kind=location.kind)
    opened = open_model(hub.resolve(model, progress=progress).path).model
    capacity = context or min(opened.config.context_length, DEFAULT_CONTEXT)
    kv = None if kv_dtype is None else KV_DTYPES[kv_dtype]
    return plan_report(opened, [location] * opened.config.n_layers, capacity, kv=kv)


def plan_report(
    model: Model,
    locations: Sequence[Location],
    capacity: int,
    known: Registry = registry,
    *,
    kv: Encoding | None = None,
) -> PlanReport:
    """Plan `model`'s decode step with its layers on `locations`, one each, over slabs of the KV type `kv` (by
    default the first device's usual one). Reads no weight, runs nothing."""
    unpacked = Registry()
    for place in dict.fromkeys(locations):
        unpacked.register(cast(Device, _Unpacked(known.device(place))))
    context = InferenceContext(locations[0], unpacked)
    traits = known.device(locations[0]).traits
    path, dtype = traits.write_path, kv or traits.kv_dtype
    small = KvCache.allocate(model, context, min(TRIAL_POSITIONS, capacity), dtype, locations=locations)
    trial = DecodeSession.build(context, model, small, path, 1, np.zeros(1, np.int64), PlanShelf())
    assert isinstance(trial, DecodeSession)
    capture = CapturedDecodeSession.capture(trial, context)

    runs = []
    for _ in range(TIMED_RUNS):
        began = time.perf_counter()
        step = build_step(model, capacity, dtype, path, small.encodings())
        hints = placement_hints(step, model, small)
        built = time.perf_counter()
        passes: dict[str, float] = {}
        plan = _timed(optimize, passes)(
            step.graph, step.roots, unpacked.snapshot(),
            default=context.location, bounds=dict(ONE_ROW), hints=hints,
        )  # fmt: skip
        planned = time.perf_counter()
        context.compile(plan)
        compiled = time.perf_counter()
        runs.append({"build the graph": built - began, **passes, "optimize": planned - built,
                     "compile": compiled - planned})  # fmt: skip
    seconds = min(runs, key=lambda run: run["optimize"])
    return PlanReport(
        model=str(model.path),
        devices=tuple(dict.fromkeys(map(str, locations))),
        context=capacity,
        nodes=len(plan.nodes),
        consts=len(plan.consts),
        segments=tuple((str(s.location), len(s.nodes)) for s in plan.steps if isinstance(s, Segment)),
        schedule=schedule(model, step, plan),
        regions=dict(Counter(n.op.pattern for n in plan.nodes.values() if isinstance(n.op, Region))),
        copies=copies(step, plan),
        memory=memory(model, step, plan, unpacked.snapshot()),
        inputs=tuple(inputs(step, plan)),
        symbols=() if path is WritePath.DEVICE_OFFSET else ("cached_len", "count", "attended_len"),
        key=key(replace(trial.structure, max_seq_len=capacity)),
        refusals={reason.value: words for reason, words in REFUSALS.items()},
        milliseconds={name: value * 1e3 for name, value in seconds.items()},
        capture_refusal=capture.reason if isinstance(capture, CaptureRefusal) else None,
    )


def _timed(
    pipeline: Callable[..., OptimizedGraph], seconds: dict[str, float]
) -> Callable[..., OptimizedGraph]:
    """The same pipeline over passes that note their time: its code with clocks around the functions of `plan`
    that it names, so that a pass added there is timed here."""

    def clocked(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            began = time.perf_counter()
            result = run(*args)
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began
            return result

        return timed

    assert isinstance(pipeline, FunctionType)
    names = dict(pipeline.__globals__)
    for name in pipeline.__code__.co_names:
        if inspect.isfunction(found := names.get(name)) and found.__module__.startswith("ostinato.plan."):
            names[name] = clocked(name, found)
    copy = FunctionType(pipeline.__code__, names, pipeline.__name__, pipeline.__defaults__)
    copy.__kwdefaults__ = pipeline.__kwdefaults__
    return copy


def key(structure: PlanStructure) -> tuple[KeyRow, ...]:
    """The fields that a plan is keyed by, with their values."""
    values = {field.name: getattr(structure, field.name) for field in fields(structure)}
    return tuple(KeyRow(name, _told(value), KEY_MEANINGS[name]) for name, value in values.items())


def _told(value: Any) -> str:
    """A field's value; what is said layer by layer, in runs."""
    if isinstance(value, ShapeKey):
        return f"{value.family}, weight set {value.weight_set}, {value.config}"
    if isinstance(value, tuple):
        home, rest = (value[:1], value[1:]) if isinstance(value[0], Location) else ((), value)
        runs = ", ".join(f"{len(list(run))} × {_layer_told(layer)}" for layer, run in groupby(rest))
        return "".join(f"{place}; slabs: " for place in home) + runs
    return str(value.value if isinstance(value, Enum) else value)


def _layer_told(value: Any) -> str:
    if isinstance(value, LayerKv):
        window = "all positions" if value.window is None else f"the last {value.window} positions"
        return f"({value.kv_heads} KV heads, K {value.k_dim}, V {value.v_dim}, attending {window})"
    return str(value)
