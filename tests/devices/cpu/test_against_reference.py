"""A model's step on the CPU device against the very same plan on the reference device: the same roundings,
joined weights and regions, there run by their definitions.

Node by node from the same inputs, whatever the weights are: both round the same rows, integers are exact, so
all that is left are sums of float32. And as a whole, where one last bit may come to decide a rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from decode.sessionkit import LLAMA_CONFIG, micro_masked, model_of, same_bits
from devices.cpu.regionwise import Pair, relative, with_any_weights, with_weights
from devices.cpu.running import HOST_ISAS
from ostinato.device.traits import WritePath
from ostinato.devices.cpu.emit.builder import Value
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.kernels import attention as attention_kernels
from ostinato.devices.cpu.kernels import norms
from ostinato.devices.cpu.weights import PACKED
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding
from ostinato.ir.ops.region import Region
from ostinato.models.contract import Model
from ostinato.models.llama import LLAMA
from ostinato.models.loader import load_model
from ostinato.models.rope import RopeSpec
from ostinato.runtime.weights import WeightSet
from sabotage import goes_red
from tinymodels import FIXTURES, TINY_LLAMAS

NODE = 2e-6
"""Of each node, from the same inputs: the largest difference, relative to its largest value."""
REST = 2e-5
"""Where a rest may have gone to the next of 254 parts of that: with a norm before it, any may."""
STEP = 2e-2
"""Where one element has gone to the next integer of 127, or may have."""

FLOATS = (enc.F32, enc.F16, enc.BF16)
WEIGHTS = (*FLOATS, enc.Q8_0, enc.Q4_0, enc.Q4_1)
OTHERS = tuple(each for each, form in PACKED.items() if form.reads == each and each not in WEIGHTS)
"""What can be read and not be written: such weights are random bytes."""
FLOAT_MODELS = ("ragged", "masked")
"""Their rows are no whole blocks."""
MODELS = ("odd", *(f"tiny-llama-{name}" for name in TINY_LLAMAS), "tiny-phi", *FLOAT_MODELS, "wide")
STEPS = ((1, 1), (6, 5))
"""(the most rows of a plan, those of the step): the decode plan, and a tile with a remainder."""

ODD = replace(
    LLAMA_CONFIG, vocab_size=101, dim=96, ffn_dim=160, heads=3, kv_heads=1, head_dim=32,
    rope=RopeSpec(10000.0, 32), tied=True,
)  # fmt: skip
"""Rows of whole blocks, yet not of whole units of 64; a table that is no whole number of groups of 16."""
RAGGED = replace(
    LLAMA_CONFIG, vocab_size=101, dim=36, ffn_dim=40, heads=3, kv_heads=1, head_dim=12,
    rope=RopeSpec(10000.0, 12), qkv_bias=True,
)  # fmt: skip
"""No weight has a whole number of groups, so gate and up don't take turns, and no row whole vectors."""
WIDE = replace(
    LLAMA_CONFIG, vocab_size=101, n_layers=1, dim=256, ffn_dim=512, heads=4, kv_heads=2, head_dim=64,
    rope=RopeSpec(10000.0, 64),
)  # fmt: skip
"""Rows of whole super-blocks."""
KV = (enc.F16, enc.F32, enc.Q8_0)
OWN = {"odd": ODD, "ragged": RAGGED, "wide": WIDE}


def weights_of(model: str) -> tuple[Encoding, ...]:
    """The encodings that a model can have."""
    return FLOATS if model in FLOAT_MODELS else OTHERS if model == "wide" else WEIGHTS


class Case(NamedTuple):
    isa: Isa
    model: str
    weights: Encoding
    kv: enc.Encoding

    def __str__(self) -> str:
        return f"{self.isa.name}-{self.model}-{self.weights.name}-{self.kv}"

    def pair(self, bound: int, path: WritePath, threads: int = 1) -> Pair:
        return Pair(model_in(self.model, self.weights), self.isa, self.kv, path, bound, threads)


def cases(isa: Isa) -> Iterator[Case]:
    """Each model with every encoding of weights that it can have; fewer models on all but the best set."""
    for m, name in enumerate(MODELS):
        if isa is HOST_ISAS[0] or name in ("odd", "tiny-llama-window", "tiny-phi", "wide"):
            for w, weights in enumerate(weights_of(name)):
                yield Case(isa, name, weights, KV[(m + w) % 3])


def is_one_of_few(case: Case) -> bool:
    """On the best set every model and every encoding, on the others the two ways of a product."""
    if case.isa is not HOST_ISAS[0]:
        return case.model == "odd" and case.weights in (enc.F16, enc.Q4_1)
    if case.model in ("odd", "wide"):
        return case.weights in (enc.F16, enc.Q8_0, enc.Q4_1, enc.Q4_K, enc.Q6_K)
    own = weights_of(case.model)
    return case.weights is own[(MODELS.index(case.model) + 2) % len(own)]


def is_one_of_fewer(case: Case) -> bool:
    """On the best set, one model."""
    return case.isa is HOST_ISAS[0] and case.model == "odd" and is_one_of_few(case)


def params(quick: Callable[[Case], bool]) -> list[Any]:
    """All cases; those that aren't `quick` have the mark `slow`."""
    every = [case for isa in HOST_ISAS for case in cases(isa)]
    return [pytest.param(case, marks=() if quick(case) else pytest.mark.slow, id=str(case)) for case in every]


@cache
def model_named(name: str) -> Model:
    if name == "masked":
        return micro_masked()
    if name in OWN:
        return calm(model_of(LLAMA, OWN[name]))
    return load_model(FIXTURES / f"{name}.gguf")


def calm(model: Model) -> Model:
    """Smaller matrices: scores far beyond those of trained models would make much of their last bits."""
    tensors = dict(model.weights)
    for name, tensor in tensors.items():
        if len(tensor.shape) == 2:
            raw = (tensor.raw.view(np.float32) * np.float32(0.5)).view(np.uint8)
            tensors[name] = replace(tensor, raw=raw)
    return replace(model, weights=WeightSet(tensors))


@cache
def model_in(name: str, weights: Encoding) -> Model:
    model = model_named(name)
    return with_any_weights(model, weights) if name == "wide" else with_weights(model, weights)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """BLAS on one thread: its sums don't depend on what else runs."""
    with threadpool_limits(1, user_api="blas"):
        yield


def check_each(case: Case, bound: int, rows: int, path: WritePath) -> int:
    """How many rows were left in doubt."""
    doubtful = 0
    nodes, slabs = case.pair(bound, path).each(rows)
    for node in nodes:
        doubt = node.doubtful
        sure = REST if node.has_rests else NODE
        assert (node.error <= np.where(doubt, STEP, sure)).all(), f"{node}: {node.error}"
        if node.theirs.dtype == np.int64:
            same_bits(node.mine, node.theirs)
        doubtful += int(doubt.sum())
    assert sum(isinstance(node.node.op, Region) for node in nodes) > 3
    for mine, theirs in slabs:
        same_bits(mine, theirs)
    return doubtful


@pytest.mark.parametrize("case", params(is_one_of_few))
def test_each_node_from_the_same_inputs(case: Case) -> None:
    doubtful = sum(check_each(case, *step, path) for step in STEPS for path in WritePath)
    assert doubtful <= 12, "a bound that is rarely the tight one says little"


@pytest.mark.parametrize("case", params(is_one_of_fewer))
def test_the_whole_step(case: Case) -> None:
    """Two threads: values are where the barriers say that they are."""
    rounded = case.weights not in FLOATS
    bound = STEP if rounded or case.kv is enc.Q8_0 else 1e-5 if case.kv is enc.F32 else 5e-4
    for most, rows in STEPS:
        for path in WritePath:
            pair = case.pair(most, path, threads=2)
            for name, mine, theirs in pair.whole(rows):
                if name != "argmax":
                    assert relative(mine, theirs).max() <= bound, name
                else:
                    assert mine.shape == theirs.shape


def off_by_little(*args: object, exact: Callable[..., Value] = norms._scale) -> Value:
    """A norm's scale, off by 1e-5."""
    return exact(*args) * 1.00001


@pytest.mark.parametrize(
    ("owner", "name", "wrong"),
    [(norms, "_scale", off_by_little), (attention_kernels, "LOG2_E", 1.4427)],
    ids=["norm", "softmax"],
)
def test_small_mistakes_in_kernels_are_seen(
    owner: object, name: str, wrong: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(HOST_ISAS[0], "odd", enc.Q4_1, enc.F16)
    goes_red(monkeypatch, owner, name, wrong, lambda: check_each(case, 1, 1, WritePath.DEVICE_OFFSET))
