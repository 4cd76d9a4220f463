"""What is bound to a graph's Consts."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.device.storage import Storage
from ostinato.errors.graph import BindingMismatch
from ostinato.ir.graph import Node
from ostinato.ir.ops.const import Const
from ostinato.ir.shape import NodeId, is_static, resolve
from ostinato.ir.symbols import SymEnv


class StorageCache:
    """(graph id, NodeId) → Storage; a Const accepts only the dtype, encoding and extent it declares."""

    def __init__(self) -> None:
        self._storages: dict[tuple[int, NodeId], Storage] = {}

    def bind(self, graph_id: int, node: Node, storage: Storage) -> None:
        """Raises BindingMismatch and leaves the cache as it was."""
        assert isinstance(node.op, Const)
        check_binding(node, node.op, storage)
        self._storages[graph_id, node.id] = storage

    def get(self, graph_id: int, node: NodeId) -> Storage | None:
        return self._storages.get((graph_id, node))

    def of_graph(self, graph_id: int) -> Mapping[NodeId, Storage]:
        return {node: storage for (graph, node), storage in self._storages.items() if graph == graph_id}

    def __len__(self) -> int:
        return len(self._storages)


def check_binding(node: Node, const: Const, storage: Storage) -> None:
    """Compare a storage with a Const's declaration, field by field."""
    if storage.dtype is not const.dtype:
        raise BindingMismatch(const.label, "dtype", str(const.dtype), str(storage.dtype))
    if storage.encoding != const.encoding:
        raise BindingMismatch(const.label, "encoding", str(const.encoding), str(storage.encoding))
    if is_static(node.shape) and const.encoding.is_plain:
        expected = _nbytes(resolve(node.shape, SymEnv()), const)
        if storage.nbytes != expected:
            raise BindingMismatch(const.label, "extent", f"{expected} bytes", f"{storage.nbytes} bytes")


def _nbytes(shape: tuple[int, ...], const: Const) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count * const.encoding.block_bytes
