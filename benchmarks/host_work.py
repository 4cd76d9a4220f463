"""What Python does for a token outside the device: microseconds over a device whose runs cost nothing.

    python benchmarks/host_work.py [model]

"hot" is one token after another. "cold" reads 64 MiB where the device would run, as a model's weights do, so
that Python's own memory has to come back into the caches: what a real token meets. "greedy" brings the
argmax home, "drawn" lends logits to the sampler, "copied" makes them the caller's. Other work on the machine
shows; the least of many is what the code costs.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from ostinato import hub
from ostinato.decode.forward import (
    borrow_logits,
    forward_with_kv_context_captured,
    forward_with_kv_context_persistent,
)
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import LAST, Argmax
from ostinato.device.segment import Segment
from ostinato.device.storage import Storage
from ostinato.devices.reference import ReferenceDevice
from ostinato.ir.shape import NodeId, resolve
from ostinato.ir.symbols import SymEnv
from ostinato.models.loader import load_model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry

POSITION, HOT, COLD = 100, 2000, 200


class Free(ReferenceDevice):
    """Runs do nothing but `work`; results are whatever was there."""

    work: Callable[[], object] = staticmethod(lambda: None)

    def compile(self, segment: Segment) -> Any:
        return FreeProgram(self, segment)


class FreeProgram:
    """A program, what it is bound to, its capture and its runs in one: there is nothing to tell apart."""

    def __init__(self, device: Free, segment: Segment) -> None:
        self.device, self.segment = device, segment
        self.slots: Mapping[NodeId, Storage] = {}
        self.buffers: dict[NodeId, Any] = {}

    def workspace(self) -> None:
        return None

    def bind(self, slots: Mapping[NodeId, Storage], workspace: Any, outputs: Any) -> FreeProgram:
        bound = FreeProgram(self.device, self.segment)
        bound.slots = slots
        return bound

    def freeze(self, varying: Sequence[NodeId], env: SymEnv) -> FreeProgram:
        shapes = {slot.node: resolve(slot.shape, env) for slot in self.segment.inputs if slot.node in varying}
        self.buffers = {node: self.slots[node].parts[0].data.reshape(shapes[node]) for node in varying}
        return self

    def run(self, env: Any = None, overlay: Any = None) -> FreeProgram:
        self.device.work()
        return self

    def replay(self, values: Any) -> FreeProgram:
        return self.run()

    def wait(self) -> None:
        return None


def main(name: str) -> None:
    model, device, devices, slot = load_model(hub.resolve(name).path), Free(), Registry(), DecodeSlot()
    devices.register(device)
    context = InferenceContext(device.location, devices)
    cache = KvCache.allocate(model, context, 2 * POSITION)
    place = (cache, context, slot)
    ways: dict[str, Callable[..., Any]] = {}
    for mode, forward in (
        ("held", forward_with_kv_context_persistent),
        ("captured", forward_with_kv_context_captured),
    ):
        ways[f"{mode}, greedy"] = partial(forward, model, [1], *place, want=Argmax())
        ways[f"{mode}, drawn"] = partial(borrow_logits, model, [1], *place, captured=mode == "captured")
        ways[f"{mode}, copied"] = partial(forward, model, [1], *place, want=LAST)
    swept, spent = np.zeros(64 << 20, np.uint8), [0.0]

    def sweep() -> None:
        began = time.perf_counter()
        swept[::64] += 1
        spent[0] += time.perf_counter() - began

    for way, run in ways.items():
        times: dict[str, list[float]] = {"hot": [], "cold": []}
        for kind, count in (("hot", HOT), ("cold", COLD)):
            device.work = sweep if kind == "cold" else lambda: None
            for _ in range(count):
                cache.truncate_to(0)
                cache.advance(POSITION)
                spent[0] = 0.0
                began = time.perf_counter()
                run()
                times[kind].append((time.perf_counter() - began - spent[0]) * 1e6)
        told = [f"{kind} {statistics.median(us):6.1f} (least {min(us):6.1f})" for kind, us in times.items()]
        print(f"{way:17} {'   '.join(told)} us")


if __name__ == "__main__":
    main(sys.argv[1] if sys.argv[1:] else hub.DEFAULT_MODEL)
