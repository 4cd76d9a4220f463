"""A model at work, for those who time it: tokens decoded at some depth, prompts read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import All, Argmax, Last, Result
from ostinato.device.storage import Storage
from ostinato.engine.clocked import clocked
from ostinato.engine.llm import LLM
from ostinato.engine.memory import prefill_rows
from ostinato.engine.pool import PlanMode, run_step
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.ops.nn import Embedding
from ostinato.ir.shape import NodeId

FIRST_TOKEN = 5


@dataclass(frozen=True, slots=True)
class Work:
    """One thing to time: `tokens` decoded one by one after `depth` others, or read as one prompt, or in
    steps of `rows`, with the logits of each."""

    kind: Literal["decode", "prefill", "rows"]
    tokens: int
    depth: int = 0
    rows: int = 1

    @property
    def name(self) -> str:
        if self.kind == "rows":
            return f"{self.tokens} in rows of {self.rows}"
        return f"{self.kind} {self.tokens}" + (f" at {self.depth}" if self.kind == "decode" else "")

    @property
    def positions(self) -> int:
        """Of the KV cache, that it takes: a step is done before those that are timed."""
        return self.depth + self.tokens + self.rows


@dataclass(frozen=True, slots=True)
class Taken:
    """Seconds: all of it, and of that inside the device."""

    seconds: float
    device: float


class Rig:
    """A model, a KV cache that fills with what real tokens give, and a slot whose plans stay warm.

    Raises what LLM's first step raises: InvalidSetting for a KV type that the device lacks, for example.
    """

    def __init__(self, llm: LLM) -> None:
        self.model = llm.model
        self.context, self._clock = clocked(llm.inference)
        self.cache = KvCache.allocate(llm.model, self.context, llm.context, llm.kv_dtype)
        self._slot = DecodeSlot()
        self._slot.acquire()
        self._traits = self.context.devices.device(self.context.location).traits

    def time(self, work: Work) -> Taken:
        """Do the work. Plans and captures are made before the clock starts, all the depth is filled."""
        if work.kind == "decode":
            return self._decode(work)
        if work.kind == "rows":
            return self._rows(work)
        self.go_to(0)
        began, before = time.perf_counter(), self._clock.seconds
        self._prefill(work.tokens)
        return Taken(time.perf_counter() - began, self._clock.seconds - before)

    def _decode(self, work: Work) -> Taken:
        """As the token loop does at temperature 0: the likeliest token comes home and is the next."""
        self.go_to(work.depth)
        token = self._token(FIRST_TOKEN)
        began, before = time.perf_counter(), self._clock.seconds
        for _ in range(work.tokens):
            token = self._token(token)
        return Taken(time.perf_counter() - began, self._clock.seconds - before)

    def _rows(self, work: Work) -> Taken:
        """As verification and batches do: steps of a few rows, the logits of all of them wanted."""
        self.go_to(0)
        self._run(self._ids(work.rows), All())
        began, before = time.perf_counter(), self._clock.seconds
        for _ in range(work.tokens // work.rows):
            self._run(self._ids(work.rows), All())
        return Taken(time.perf_counter() - began, self._clock.seconds - before)

    def go_to(self, depth: int) -> None:
        """Have exactly `depth` positions in the cache."""
        if self.cache.length > depth:
            self.cache.truncate_to(depth)
        self._prefill(depth - self.cache.length)

    def _prefill(self, count: int) -> None:
        while count:
            rows = min(count, prefill_rows(self.model, self._traits, self.cache.length))
            self._run(self._ids(rows), Last() if rows == count else Argmax())
            count -= rows

    def _ids(self, count: int) -> list[int]:
        """Tokens all over the vocabulary, by their positions."""
        first = self.cache.length
        return [(at * 104729 + 7919) % self.model.config.vocab_size for at in range(first, first + count)]

    def _token(self, token: int) -> int:
        return int(self._run([token], Argmax()))

    def _run(self, tokens: Sequence[int], want: Last | All | Argmax) -> Result:
        return run_step(
            self.model, tokens, self.cache, self.context, self._slot, PlanMode.CAPTURED, want=want
        )

    def kv_bytes(self, work: Work) -> float:
        """Bytes of K and V that a token of this decoding attends, itself included; the mean of all."""
        total = 0
        for layer in self.model.config.kv:
            cell = layer.kv_heads * sum(self._blocks(dim) for dim in (layer.k_dim, layer.v_dim))
            for position in range(work.depth + 1, work.positions):
                total += cell * min(position + 1, layer.window or position + 1)
        return total / work.tokens

    def _blocks(self, elements: int) -> int:
        """Bytes of so many elements of K or V in whole blocks."""
        kv = self.cache.dtype
        return -(-elements // kv.block) * kv.block_bytes

    def weight_bytes(self) -> int:
        """Bytes of packed weights that each decoded token reads whole: all but those it only looks a row up
        in, as in an embedding that is no head as well."""
        if self._slot.session is None:
            self.time(Work("decode", 1))
        session = self._slot.session
        assert session is not None
        plan = session.optimized
        read: set[NodeId] = set()
        for node in plan.nodes.values():
            read.update(node.inputs[:1] if isinstance(node.op, Embedding) else node.inputs)
        weights: set[Storage] = set()
        for id, storage in session.base_cache.of_graph(session.step.graph.id).items():
            op = plan.nodes[id].op if id in read else None
            if isinstance(op, Const) and op.role is ConstRole.WEIGHT:
                weights.add(storage)
        return sum(storage.nbytes for storage in weights)
