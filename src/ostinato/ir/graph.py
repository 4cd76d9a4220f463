"""The append-only graph that model code writes and plans read."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ostinato.errors.graph import GraphMixed
from ostinato.ir.dtype import DType
from ostinato.ir.encoding import Encoding, plain
from ostinato.ir.op import Op
from ostinato.ir.ops.const import Const, ConstRole
from ostinato.ir.shape import NodeId, Shape, show

if TYPE_CHECKING:
    from ostinato.ir.tensor import Tensor

_graph_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Node:
    """One op applied to earlier nodes: no data, no device."""

    id: NodeId
    op: Op
    inputs: tuple[NodeId, ...]
    shape: Shape
    dtype: DType

    def __str__(self) -> str:
        inputs = ", ".join(f"%{i}" for i in self.inputs)
        return f"%{self.id} = {self.op}({inputs}): {show(self.shape)} {self.dtype}"


class Graph:
    """Nodes in the order they were written; a node only refers to earlier ones. `id` is never reused."""

    def __init__(self) -> None:
        self.id = next(_graph_ids)
        self._nodes: list[Node] = []

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __getitem__(self, node: NodeId) -> Node:
        return self._nodes[node]

    def apply(self, op: Op, *inputs: Tensor) -> Tensor:
        """Append `op` over `inputs`; raises ShapeMismatch, DTypeMismatch or GraphMixed, appending nothing."""
        for tensor in inputs:
            if tensor.graph is not self:
                raise GraphMixed(op.name, self.id, tensor.graph.id)
        value = op.infer(*(tensor.node for tensor in inputs))
        node = Node(NodeId(len(self._nodes)), op, tuple(t.id for t in inputs), value.shape, value.dtype)
        self._nodes.append(node)
        return self.tensor(node.id)

    def tensor(self, node: NodeId) -> Tensor:
        """The handle of an existing node."""
        from ostinato.ir.tensor import Tensor

        return Tensor(self, node)

    def const(
        self,
        name: str,
        role: ConstRole,
        shape: Sequence[int] | Shape,
        dtype: DType = DType.F32,
        encoding: Encoding | None = None,
    ) -> Tensor:
        """Declare a placeholder whose data is bound from outside."""
        return self.apply(Const(name, role, tuple(shape), dtype, encoding or plain(dtype)))
