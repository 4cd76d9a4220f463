"""Fixed storages for the data that a held plan is given anew for every run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from ostinato.device.contract import Device, HostArray, fitting
from ostinato.device.storage import Storage
from ostinato.errors.graph import UnboundConst
from ostinato.ir.dtype import DType
from ostinato.ir.ops.const import Const
from ostinato.ir.shape import NodeId, resolve
from ostinato.ir.symbols import SymEnv
from ostinato.plan.optimized import OptimizedGraph
from ostinato.runtime.registry import Registry


@dataclass(frozen=True, slots=True)
class _Port:
    node: NodeId
    label: str
    shape: tuple[int, ...]
    dtype: DType
    device: Device
    storage: Storage


class Staging:
    """A storage of its own for each of some data Consts whose extents are the same in every run: written
    before a run and laid over what is bound, which stays as it was. Whoever runs the plan writes all of them
    or none, and never while a run reads them.
    """

    def __init__(self, plan: OptimizedGraph, nodes: Iterable[NodeId], env: SymEnv, devices: Registry) -> None:
        """Room for those of `nodes` that the plan reads. Raises OutOfDeviceMemory."""
        self._ports = []
        for node_id in nodes:
            if node_id not in plan.nodes:  # dead data
                continue
            node = plan.nodes[node_id]
            assert isinstance(node.op, Const)
            shape, device = resolve(node.shape, env), devices.device(plan.placement[node_id])
            storage = device.allocate(prod(shape), node.op.dtype, node.op.encoding)
            self._ports.append(_Port(node_id, node.op.label, shape, node.op.dtype, device, storage))
        self.overlay: Mapping[NodeId, Storage] = {port.node: port.storage for port in self._ports}
        self.nbytes = sum(storage.nbytes for storage in self.overlay.values())

    def write(self, data: Mapping[NodeId, HostArray]) -> Mapping[NodeId, Storage]:
        """The overlay with this run's values. Raises UnboundConst, BindingMismatch before it writes any."""
        for port, value in zip(self._ports, self.fitted(data), strict=True):
            port.device.write(value, port.storage)
        return self.overlay

    def fitted(self, data: Mapping[NodeId, HostArray]) -> list[HostArray]:
        """A value for each storage: one left out would be the last run's."""
        values = []
        for port in self._ports:
            if (value := data.get(port.node)) is None:
                raise UnboundConst(port.label, "data")
            values.append(fitting(port.label, value, port.shape, port.dtype))
        return values
