"""A held decode plan recorded over fixed addresses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ostinato.decode.data import DecodeTokenData, data_by_node
from ostinato.decode.session import DecodeSession, picked
from ostinato.decode.want import LAST, Want, out_rows, shaped
from ostinato.device.contract import Captured, CaptureRefusal
from ostinato.device.segment import Segment
from ostinato.device.storage import Storage
from ostinato.errors.decode import StaleCapture
from ostinato.ir.location import HOST
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymEnv
from ostinato.plan.optimized import CopyStep
from ostinato.runtime.compiled import BoundPlan
from ostinato.runtime.context import InferenceContext


@dataclass(frozen=True, eq=False)
class CapturedDecodeSession:
    """A decode session's plan, frozen: a token writes its inputs into buffers that this object owns and
    replays. The Copy to the host stays outside; `logits_node` is what the replay leaves behind.

    `epoch` is the session's at the time of the capture: under another the addresses are no longer its own.
    """

    session: DecodeSession
    epoch: int
    _context: InferenceContext
    _bound: BoundPlan
    _captured: Captured
    _env: SymEnv

    @classmethod
    def capture(
        cls, session: DecodeSession, context: InferenceContext
    ) -> CapturedDecodeSession | CaptureRefusal:
        """Record the session's plan; runs nothing and writes no KV cell."""
        plan = session.optimized
        for step in plan.steps:
            if isinstance(step, CopyStep) and step.target != HOST:
                return CaptureRefusal(f"%{step.node} copies from {step.origin} to {step.target}")
        if session.offset_node is None:
            return CaptureRefusal("the position rides in the symbols, a capture would keep the first one's")
        segments = [at for at, step in enumerate(plan.steps) if isinstance(step, Segment)]
        if len(segments) != 1:
            return CaptureRefusal(f"the plan has {len(segments)} segments, a capture holds one")
        device = context.devices.device(session.location)
        if not device.traits.can_capture:
            return CaptureRefusal(f"{device.location} can't capture")
        env = session.per_token_sym_env(0)
        buffers = _own_buffers(session, context)
        values = {**session.base_cache.of_graph(session.step.graph.id), **buffers}
        bound = session.compiled.bind(values, env)
        captured = bound.bound[segments[0]].freeze(list(buffers), env)
        if isinstance(captured, CaptureRefusal):
            return captured
        return cls(session, session.epoch, context, bound, captured, env)

    @property
    def logits_node(self) -> NodeId:
        return self.session.logits_node

    def replay_token(self, data: DecodeTokenData, *, want: Want = LAST) -> Any:
        """Run one token; see `DecodeSession.realize_token`.

        Raises StaleCapture, TopologyChanged, RowOutOfRange, CapacityExceeded or TokenDataMismatch before
        anything runs.
        """
        self.check_epoch()
        plan = self.session.optimized
        self._context.devices.check_generation(plan.generation)
        selected = out_rows(want, 1)
        self.session.check_position(data, self._env, 1)
        values = {node: v for node, v in data_by_node(self.session.step, data).items() if node in plan.nodes}
        counts = self._context.counters.mine
        counts.realize_calls += 1
        counts.bytes_uploaded += sum(value.nbytes for value in values.values())
        self._captured.replay(values).wait()
        root = self.session.root_of(want)
        return picked(want, selected, shaped(want, self._bound.fetch(root, self._env)))

    @property
    def is_stale(self) -> bool:
        """Whether the session has been re-bound since."""
        return self.epoch != self.session.epoch

    def check_epoch(self) -> None:
        """Raises StaleCapture when the session has been re-bound since."""
        if self.is_stale:
            raise StaleCapture(self.epoch, self.session.epoch)


def _own_buffers(session: DecodeSession, context: InferenceContext) -> Mapping[NodeId, Storage]:
    """A fixed buffer for each input that differs from token to token, like the one bound first."""
    baked = session.base_cache.of_graph(session.step.graph.id)
    step = session.step
    varying = [step.token_ids, step.rope_cos, step.rope_sin, step.mask, step.start]
    buffers = {}
    for node in varying:
        if node is not None and node in baked:
            first = baked[node]
            device = context.devices.device(first.location)
            buffers[node] = device.allocate(first.nbytes // first.dtype.nbytes, first.dtype, first.encoding)
            device.copy(first, buffers[node])
    return buffers
