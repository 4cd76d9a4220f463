"""A held decode plan recorded over fixed addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TypeVar, overload

from ostinato.decode.borrowed import BorrowedLogits, lend
from ostinato.decode.data import DecodeTokenData, data_by_node, varying
from ostinato.decode.session import DecodeSession
from ostinato.decode.want import LAST, Argmax, F32Array, LogitsWant, Result, Want, out_rows, picked, shaped
from ostinato.device.contract import Captured, CaptureRefusal, HostArray, OpenCapture, Pending
from ostinato.device.segment import Segment
from ostinato.device.storage import Storage
from ostinato.errors.decode import StaleCapture
from ostinato.ir.location import HOST
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymEnv
from ostinato.models.rope import RopeTable
from ostinato.plan.optimized import CopyStep
from ostinato.runtime.compiled import BoundPlan
from ostinato.runtime.context import InferenceContext

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CaptureBuffers:
    """A capture's inputs and results where they lie, in memory that the host can read and write."""

    token_ids: HostArray
    rope_cos: HostArray
    rope_sin: HostArray
    start: HostArray
    logits: HostArray
    argmax: HostArray
    nbytes: int
    """Of the inputs."""
    ropes: RopeTable
    bound: BoundPlan
    run: Callable[[], Pending]
    """Replay what the inputs hold."""


class CapturedDecodeSession:
    """A decode session's plan, frozen: a token writes its inputs into buffers that this object owns and
    replays. The Copy to the host stays outside; `logits_node` is what the replay leaves behind.

    `epoch` is the session's at the time of the capture: under another the addresses are no longer its own.
    """

    def __init__(
        self,
        session: DecodeSession,
        context: InferenceContext,
        bound: BoundPlan,
        captured: Captured,
        buffers: Mapping[NodeId, Storage],
        env: SymEnv,
    ) -> None:
        self.session = session
        self.epoch = session.epoch
        self._context = context
        self._bound = bound
        self._captured = captured
        self._inputs = frozenset(buffers)
        self._nbytes = sum(storage.nbytes for storage in buffers.values())
        self._env = env
        self._views: dict[NodeId, HostArray | None] = {}

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
        return cls(session, context, bound, captured, buffers, env)

    @property
    def logits_node(self) -> NodeId:
        return self.session.logits_node

    @overload
    def replay_token(self, data: DecodeTokenData, *, want: LogitsWant = ...) -> F32Array: ...
    @overload
    def replay_token(self, data: DecodeTokenData, *, want: Argmax) -> int: ...
    def replay_token(self, data: DecodeTokenData, *, want: Want = LAST) -> Result:
        """Run one token; see `DecodeSession.realize_token`.

        Raises StaleCapture, TopologyChanged, RowOutOfRange, CapacityExceeded, TokenDataMismatch or
        WorkspaceBusy before anything runs.
        """
        selected = out_rows(want, 1)
        root = self.session.root_of(want)
        view = self._view(root)
        if view is None:
            return picked(want, selected, shaped(want, self._replay(data, partial(self._fetch, root))))
        if isinstance(want, Argmax):
            return int(self._replay(data, partial(view.item, 0)))
        return picked(want, selected, shaped(want, self._replay(data, view.copy)))

    @cached_property
    def buffers(self) -> CaptureBuffers | None:
        """None where the host doesn't reach them, or the family reads data that isn't the same few values."""
        captured, step = self._captured, self.session.step
        if not isinstance(captured, OpenCapture):
            return None
        inputs = captured.buffers
        usual = {step.token_ids, step.rope_cos, step.rope_sin, step.start}
        logits, argmax = (self._view(root) for root in self.session.optimized.roots[:2])
        if inputs.keys() != usual or logits is None or argmax is None:
            return None
        assert step.start is not None
        return CaptureBuffers(
            token_ids=inputs[step.token_ids],
            rope_cos=inputs[step.rope_cos],
            rope_sin=inputs[step.rope_sin],
            start=inputs[step.start],
            logits=logits,
            argmax=argmax,
            nbytes=self._nbytes,
            ropes=self.session.ropes,
            bound=self._bound,
            run=captured.run,
        )

    def _view(self, root: NodeId) -> HostArray | None:
        """Where a replay leaves its results: the addresses are fixed, so the view is made once."""
        if root not in self._views:
            self._views[root] = self._bound.view(root, self._env)
        return self._views[root]

    def _fetch(self, root: NodeId) -> HostArray:
        return self._bound.fetch(root, self._env)

    def borrow_token(self, data: DecodeTokenData) -> BorrowedLogits:
        """The same for a loop that reads the logits before its next step."""
        root, bound, env = self.session.effective_target, self._bound, self._env
        return self._replay(data, lambda: lend(bound, root, env))

    def _replay(self, data: DecodeTokenData, take: Callable[[], T]) -> T:
        """Replay with this data, and what `take` makes of the results before the next run can touch them."""
        session, context, bound = self.session, self._context, self._bound
        self.check_epoch()
        context.devices.check_generation(session.optimized.generation)
        session.check_position(data, self._env, 1)
        values = data_by_node(session.step, data)
        if len(values) != len(self._inputs):  # what the family doesn't read
            values = {node: value for node, value in values.items() if node in self._inputs}
        counts = context.counters.mine
        counts.realize_calls += 1
        counts.bytes_uploaded += self._nbytes
        bound.enter()
        try:
            self._captured.replay(values).wait()
            return take()
        finally:
            bound.leave()

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
    buffers = {}
    for node in varying(session.step):
        if node in baked:
            first = baked[node]
            device = context.devices.device(first.location)
            buffers[node] = device.allocate(first.nbytes // first.dtype.nbytes, first.dtype, first.encoding)
            device.copy(first, buffers[node])
    return buffers
