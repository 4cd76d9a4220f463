"""Held and captured tokens on the reference device, beside a hand-written loop over the same numpy calls.

    python benchmarks/held_vs_hand.py [model ...]

The loop does what the plan's tape does for one token and nothing else: no checks, no data, no choice of rows.
What a token costs more is the price of everything that the engine promises. Give a tiny model: its kernels
cost least.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ostinato.decode.forward import forward_with_kv_context_captured, forward_with_kv_context_persistent
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.devices.reference import ReferenceDevice
from ostinato.devices.reference.program import ReferenceBound
from ostinato.hub import resolve
from ostinato.models.loader import load_model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry

TINY = ("tests/fixtures/tiny-llama-grouped.gguf", "tests/fixtures/tiny-phi.gguf")
POSITION, ROUNDS, TURNS = 4, 15, 100


def main(name: str) -> None:
    model, devices, slot = load_model(resolve(name).path), Registry(), DecodeSlot()
    devices.register(ReferenceDevice(threads=1))
    context = InferenceContext("reference", devices)
    cache = KvCache.allocate(model, context, 64)
    forward_with_kv_context_persistent(model, [1, 2, 3], cache, context, slot)
    forward_with_kv_context_captured(model, [4], cache, context, slot)
    session = slot.session
    assert session is not None
    (bound,) = session._bound.bound.values()
    assert isinstance(bound, ReferenceBound)
    env = session.per_token_sym_env(cache.length)
    tape, loaded = bound._tape, bound._loaded(env, {})

    def hand() -> Any:
        registers = loaded.copy()
        with np.errstate(all="ignore"):
            for step in tape.instructions:
                registers[step.output] = step.kernel(step.op, env, *[registers[i] for i in step.inputs])
        return registers[tape.outputs[session.logits_node]][0].copy()

    def held() -> Any:
        cache.truncate_to(POSITION)
        return forward_with_kv_context_persistent(model, [7], cache, context, slot)

    def captured() -> Any:
        cache.truncate_to(POSITION)
        return forward_with_kv_context_captured(model, [7], cache, context, slot)

    ways: tuple[Callable[[], Any], ...] = (hand, held, captured)
    times: dict[str, list[float]] = {way.__name__: [] for way in ways}
    with threadpool_limits(1, user_api="blas"):
        for _ in range(ROUNDS):
            for way in ways:
                way()
                began = time.perf_counter()
                for _ in range(TURNS):
                    way()
                times[way.__name__].append((time.perf_counter() - began) / TURNS * 1e6)
    median = {way: statistics.median(us) for way, us in times.items()}
    least = {way: min(us) for way, us in times.items()}
    print(
        f"{name}: {len(tape.instructions)} calls; "
        + ", ".join(f"{way} {us:.0f} us" for way, us in median.items())
        + f"; held / hand {median['held'] / median['hand']:.2f} (least {least['held'] / least['hand']:.2f}), "
        f"captured / hand {median['captured'] / median['hand']:.2f}"
    )


if __name__ == "__main__":
    for model_name in sys.argv[1:] or TINY:
        main(model_name)
