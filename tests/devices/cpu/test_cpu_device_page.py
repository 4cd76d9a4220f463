"""docs/cpu-device.md: what it shows runs, and what it names is there."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned
from ostinato.device.segment import Segment, Slot
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.lowering import Lowering
from ostinato.ir import ConstRole, DType, Graph, Location, SymId, Tensor
from ostinato.ir import encoding as enc
from ostinato.ir.graph import Node
from ostinato.ir.op import Composite, Value
from ostinato.ir.ops.elementwise import Tanh

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "cpu-device.md").read_text("utf-8")
FOLDERS = (ROOT / "src/ostinato/devices/cpu", ROOT / "src/ostinato", ROOT / "tests/devices/cpu", ROOT)


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    """The names that the page's blocks define, having run one after another."""
    names: dict[str, Any] = {"__name__": "the page"}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/cpu-device.md", "exec", dont_inherit=True), names)
    return names


@pytest.mark.parametrize("isa", HOST_ISAS, ids=lambda isa: isa.name)
def test_the_kernel_on_every_set(shown: dict[str, Any], isa: Isa) -> None:
    kernel = shown["Softcap"](n=50, cap=30.0)
    out = aligned((7, 50))
    Kernels(isa, [kernel]).run(kernel, [shown["x"], out], 2, 5)
    assert not out[:2].any()
    assert not out[5:].any()
    np.testing.assert_allclose(out[2:5], shown["out"][2:5], rtol=1e-6)


@dataclass(frozen=True)
class Softcap(Composite):
    cap: float

    def infer(self, *inputs: Node) -> Value:
        return Value(inputs[0].shape, inputs[0].dtype)

    def decompose(self, *inputs: Tensor) -> Tensor:
        return (inputs[0] * (1 / self.cap)).apply(Tanh()) * self.cap


def test_its_lowering(shown: dict[str, Any]) -> None:
    """The kernel for matrices, the definition for all else."""
    for shape, kernels in (((SymId("rows"), 50), ["Softcap"]), ((SymId("rows"), 2, 25), None)):
        graph = Graph()
        x = graph.const("x", ConstRole.DATA, shape)
        y = x.apply(Softcap(30.0))
        slots = [Slot(t.id, t.node.op.name, t.shape, DType.F32, enc.F32, True) for t in (x, y)]
        bounds = {SymId("rows"): 7}
        segment = Segment(Location("cpu"), (y.node,), (slots[0],), (slots[1],), bounds)
        low = Lowering(segment, {Softcap: shown["softcap"]})
        low.node(y.node)
        names = [type(step.kernel).__name__ for step in low.tape().steps]
        assert names == kernels if kernels else "Softcap" not in names and names


def test_files_that_it_names_are_there() -> None:
    named = set(re.findall(r"`([\w./-]+(?:\.py|\.md|/))", PAGE))
    assert len(named) > 40
    missing = [name for name in named if not any((folder / name).exists() for folder in FOLDERS)]
    assert not missing
