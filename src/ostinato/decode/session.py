"""The held plans of a decode step and of steps of several rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

import numpy.typing as npt

from ostinato.decode.borrowed import BorrowedLogits, lend
from ostinato.decode.data import DecodeTokenData, data_by_node, shape_data, varying
from ostinato.decode.held import HeldSession
from ostinato.decode.step import (
    step_env,
)
from ostinato.decode.validity import PlanStructure, PlanValidity, differs
from ostinato.decode.want import (
    LAST,
    Argmax,
    F32Array,
    LogitsWant,
    Result,
    Want,
    out_rows,
    picked,
)
from ostinato.device.storage import Storage
from ostinato.device.traits import WritePath
from ostinato.errors.device import DeviceMismatch
from ostinato.ir.encoding import Encoding
from ostinato.ir.location import Location
from ostinato.ir.shape import NodeId
from ostinato.ir.symbols import SymEnv
from ostinato.models.contract import LayerKv, ShapeKey
from ostinato.runtime.staging import Staging

Array = npt.NDArray[Any]


class DecodeSession(HeldSession):
    """The held plan of the decode step: one row."""

    def validity_for(
        self,
        seq: int,
        max_seq_len: int,
        n_layers: int,
        cache_dtype: Encoding,
        shape_key: ShapeKey,
        alloc_id: int,
        *,
        kv_geometry: tuple[LayerKv, ...],
        location: tuple[Location, ...],
        write_path: WritePath,
    ) -> PlanValidity:
        """Whether this plan serves a step of `seq` rows over such a cache; `location` is the device that runs
        what nothing ties to another, then those of each layer's K and V."""
        if differs("seq", 1, seq):
            return PlanValidity.stale("seq")
        structure = PlanStructure(
            max_seq_len, n_layers, cache_dtype, shape_key, kv_geometry, location, write_path
        )
        return self.validity(structure, alloc_id)

    def is_valid_for(self, *args: Any, **kwargs: Any) -> bool:
        """`validity_for(...)` is VALID."""
        return self.validity_for(*args, **kwargs) is PlanValidity.VALID

    def per_token_sym_env(self, cached_len: int) -> SymEnv:
        """The symbols of a token at position `cached_len`; dead on the device_offset path."""
        return step_env(cached_len, 1, 1)

    @overload
    def realize_token(
        self, device: Location, data: DecodeTokenData, sym_env: SymEnv, *, want: LogitsWant = ...
    ) -> F32Array: ...
    @overload
    def realize_token(
        self, device: Location, data: DecodeTokenData, sym_env: SymEnv, *, want: Argmax
    ) -> int: ...
    def realize_token(
        self, device: Location, data: DecodeTokenData, sym_env: SymEnv, *, want: Want = LAST
    ) -> Result:
        """Run one token: logits float32 `[vocab]`, or what else `want` asks for; only its Copy is made.

        Raises DeviceMismatch, RowOutOfRange, CapacityExceeded, TokenDataMismatch, TopologyChanged or
        WorkspaceBusy before anything runs.
        """
        selected = out_rows(want, 1)
        nodes = self._checked(device, data, sym_env)
        return picked(want, selected, self._run(nodes, sym_env, want))

    def borrow_token(self, device: Location, data: DecodeTokenData, sym_env: SymEnv) -> BorrowedLogits:
        """The same for a loop that reads the logits before its next step."""
        nodes, bound = self._checked(device, data, sym_env), self._bound
        return self._ran(nodes, sym_env, lambda: lend(bound, self.effective_target, sym_env))

    def _checked(self, device: Location, data: DecodeTokenData, env: SymEnv) -> Mapping[NodeId, Array]:
        if device is not self.location and device != self.location:
            raise DeviceMismatch("the session", str(device), str(self.location))
        self.check_position(data, env, 1)
        return data_by_node(self.step, data)

    def _brought(self, data: Mapping[NodeId, Array], env: SymEnv) -> Mapping[NodeId, Storage]:
        """A token's data has the same extents every time: it is written over the last token's."""
        context = self._context
        if self._staging is None:
            self._staging = Staging(self.optimized, varying(self.step), self._bounds, context.devices)
        context.counters.mine.bytes_uploaded += self._staging.nbytes
        return self._staging.write(data)


class StepSession(HeldSession):
    """The held plan of steps of 1 … `max_rows` rows: prefill and verification."""

    def realize_rows(
        self, data: DecodeTokenData, env: SymEnv, count: int, selected: Sequence[int], want: Want
    ) -> Result:
        """Run `count` rows (the data may have more, padded ones); `selected` are those whose logits count."""
        self.check_position(data, env, count)
        nodes = {**data_by_node(self.step, data), **shape_data(self.step, count, selected)}
        return self._run(nodes, env, want)
