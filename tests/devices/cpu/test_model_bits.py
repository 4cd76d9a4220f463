"""The bit contract of whole models: a prompt in one call, in uneven pieces, token by token; on one thread, on
two, on three: the same logits and the same KV cells, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from decode.sessionkit import CAPTURED, HELD, REPLAN, Entry, World, same_bits
from devices.cpu.running import HOST_ISAS
from devices.frail import FrailCpu, KernelByKernel
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import All
from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.engine import Engine
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels.attention_shape import SPAN
from ostinato.devices.cpu.weights import GROUP
from ostinato.devices.cpu.weights.plain import FloatForm
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding
from ostinato.models.contract import Model
from ostinato.models.loader import load_model
from ostinato.runtime.registry import Registry
from sabotage import goes_red
from tinymodels import FIXTURES

POSITIONS = 150
"""More than a span of attention has, so that records are merged."""
PIECES = (1, 2, 61, 5, 1, 1, 67, 12)
"""Of the prompt; whole tiles and every remainder are among them, and a span that two pieces share."""
THREADS = (1, 2, 3)

MODELS = ("tiny-llama-grouped", "tiny-llama-bias", "tiny-llama-window", "tiny-llama-tied", "tiny-phi")
WEIGHTS = (enc.F32, enc.F16, enc.BF16, enc.Q8_0, enc.Q4_0, enc.Q4_1)
KV = (enc.F16, enc.F32, enc.Q8_0)
CASES = [
    pytest.param(
        name, weights, dtype, id=f"{name}-{weights}-{dtype}",
        marks=[] if (i + j) % 3 == k else [pytest.mark.slow],  # by default every two of the three meet
    )
    for i, name in enumerate(MODELS) for j, weights in enumerate(WEIGHTS) for k, dtype in enumerate(KV)
    if name == MODELS[0] or (i + j) % 3 == k
]  # fmt: skip


@cache
def model_of(name: str, weights: Encoding) -> Model:
    return load_model(FIXTURES / f"{name}.gguf", weights=weights)


@dataclass(frozen=True)
class Ran:
    """One way through the prompt: logits `[POSITIONS, vocab]`, and each slab's cells."""

    logits: np.ndarray
    cells: list[np.ndarray]


class Ways:
    """Every way to run one model's prompt on one device."""

    def __init__(
        self,
        model: Model,
        dtype: enc.Encoding,
        isa: Isa = HOST_ISAS[0],
        engine: type[Engine] = KernelByKernel,
    ) -> None:
        self.model, self.dtype = model, dtype
        self.device = FrailCpu()
        self.device.engine = engine(isa, None, 1)
        devices = Registry()
        devices.register(self.device)
        self.world = World(devices, (self.device.location,))
        tokens = np.random.default_rng(7).integers(0, model.config.vocab_size, POSITIONS)
        self.tokens = [int(token) for token in tokens]

    def run(self, entry: Entry, pieces: Sequence[int], threads: int) -> Ran:
        self.device.set_threads(threads)
        place, slot = self.world, DecodeSlot()
        cache, logits = place.cache(self.model, POSITIONS + 20, self.dtype), []
        for count in pieces:
            step = self.tokens[cache.length : cache.length + count]
            want = {} if count == 1 else {"want": All()}  # one token alone is the decode plan's
            logits.append(np.atleast_2d(entry(self.model, step, cache, place, slot, **want)))
        assert cache.length == POSITIONS
        return Ran(np.concatenate(logits), place.cells(cache))

    def all(self) -> Iterator[tuple[str, Ran]]:
        for threads in THREADS:
            for entry, name, pieces in (
                (HELD, "one call", (POSITIONS,)),
                (HELD, "pieces", PIECES),
                (CAPTURED, "token by token", (1,) * POSITIONS),
            ):
                yield f"{name}, {threads} threads", self.run(entry, pieces, threads)


def check(ways: Ways) -> None:
    (_, first), *others = ways.all()
    assert np.isfinite(first.logits).all()
    assert np.abs(np.diff(first.logits, axis=0)).max() > 1e-3  # positions do differ
    differing = {
        name: [what for what, mine, theirs in (("logits", first.logits, other.logits),
               *((f"slab {i}", a, b) for i, (a, b) in enumerate(zip(first.cells, other.cells, strict=True))))
               if mine.tobytes() != theirs.tobytes()]
        for name, other in others
    }  # fmt: skip
    assert not {name: what for name, what in differing.items() if what}


def test_the_prompt_is_long_enough_and_its_pieces_are_uneven() -> None:
    assert sum(PIECES) == POSITIONS > SPAN
    assert {count % 4 for count in PIECES} == {0, 1, 2, 3}
    edges = np.cumsum(PIECES)
    assert any(edge % SPAN for edge in edges[:-1])
    assert max(np.diff(edges)) > 64


@pytest.mark.parametrize(("name", "weights", "dtype"), CASES)
def test_every_way_gives_the_same_bits(name: str, weights: Encoding, dtype: enc.Encoding) -> None:
    model = model_of(name, weights)
    matrices = {tensor.encoding for tensor in model.weights.values() if len(tensor.shape) == 2}
    assert matrices == {weights}
    check(Ways(model, dtype))


@pytest.mark.parametrize(
    ("weights", "kv"), [(enc.F16, enc.F16), (enc.Q8_0, enc.F16), (enc.Q4_1, enc.Q8_0)], ids=str
)
@pytest.mark.parametrize("isa", HOST_ISAS[1:], ids=lambda isa: isa.name)
def test_on_each_instruction_set(isa: Isa, weights: Encoding, kv: Encoding) -> None:
    check(Ways(model_of(MODELS[0], weights), kv, isa))


@pytest.mark.parametrize("dtype", KV, ids=str)
def test_replanned_pieces_too(dtype: enc.Encoding) -> None:
    ways = Ways(model_of(MODELS[0], enc.Q4_0), dtype)
    one, pieces = ways.run(HELD, (POSITIONS,), 2), ways.run(REPLAN, PIECES, 2)
    for mine, theirs in zip((one.logits, *one.cells), (pieces.logits, *pieces.cells), strict=True):
        same_bits(theirs, mine)


def test_kernels_in_one_module_too() -> None:
    """As the device compiles them: the tests of whole models here and elsewhere compile them one by one."""
    model = model_of(MODELS[0], enc.Q4_1)
    alone, together = (
        Ways(model, enc.F16, engine=engine).run(HELD, PIECES, 2) for engine in (KernelByKernel, Engine)
    )
    for mine, theirs in zip((alone.logits, *alone.cells), (together.logits, *together.cells), strict=True):
        same_bits(theirs, mine)


def test_sabotage_rows_in_a_tile_that_are_summed_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a tile of its own loop would: the halves of k apart. Every number is as right as before."""
    dot = FloatForm.dot

    def halves(
        self: FloatForm, f: Function, isa: Isa, k: int, w: Value, rows: Sequence[Value], ahead: int = 0
    ) -> list[Value]:
        if len(rows) == 1:
            return dot(self, f, isa, k, w, rows)
        half = k // 2
        low = dot(self, f, isa, half, w, rows)
        behind = f.at(w, half * GROUP * self.element.nbytes)
        high = dot(self, f, isa, k - half, behind, [f.at(row, half * 4) for row in rows])
        return [a + b for a, b in zip(low, high, strict=True)]

    goes_red(monkeypatch, FloatForm, "dot", halves, lambda: check(Ways(model_of(MODELS[0], enc.F32), KV[0])))
