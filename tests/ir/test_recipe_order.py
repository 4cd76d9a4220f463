"""Row orders of packed weights, and that the reference device packs by them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.device.encoded import EncodedTensor
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import BindingMismatch, NoKernel
from ostinato.ir import encoding as enc
from ostinato.ir.recipe import PackRecipe, interleave
from sabotage import goes_red


@given(parts=st.integers(1, 4), width=st.integers(1, 9), turns=st.integers(1, 5))
def test_interleaved_tensors_take_turns(parts: int, width: int, turns: int) -> None:
    recipe = PackRecipe(tuple(map(str, range(parts))), "any", interleave(width))
    rows = width * turns
    expected = [
        part * rows + turn * width + row
        for turn in range(turns)
        for part in range(parts)
        for row in range(width)
    ]  # fmt: skip
    assert recipe.row_order([rows] * parts).tolist() == expected
    assert recipe.interleaved == width


def test_without_a_permutation_rows_follow_each_other() -> None:
    recipe = PackRecipe(("a", "b"), "any")
    assert recipe.row_order([2, 3]).tolist() == [0, 1, 2, 3, 4]
    assert recipe.interleaved is None
    assert recipe.is_known


@pytest.mark.parametrize("rows", [[16, 32], [24, 24], [16, 16, 8]])
def test_rows_that_can_t_take_turns_are_refused(rows: list[int]) -> None:
    recipe = PackRecipe(("a",) * len(rows), "any", interleave(16))
    with pytest.raises(BindingMismatch, match=r"equal multiples of 16.*\b" + str(rows[1])):
        recipe.row_order(rows)


@pytest.mark.parametrize(
    "order", ["interleave:0", "interleave:", "interleave:016", "interleave:-1", "zigzag", ""]
)
def test_other_orders_are_unknown(order: str) -> None:
    recipe = PackRecipe(("a",), "dense", order)
    assert not recipe.is_known
    tensor = EncodedTensor("a", (1,), enc.F32, np.float32([1]).view(np.uint8))
    with pytest.raises(NoKernel, match="row order"):
        ReferenceDevice().pack(recipe, [tensor])


def tensors(*shapes: tuple[int, ...]) -> tuple[list[EncodedTensor], list[np.ndarray]]:
    values = [
        np.random.default_rng(i).normal(0, 1, shape).astype(np.float32) for i, shape in enumerate(shapes)
    ]
    names = "ab"[: len(shapes)]
    packed = [
        EncodedTensor(n, v.shape, enc.F32, v.reshape(-1).view(np.uint8))
        for n, v in zip(names, values, strict=True)
    ]
    return packed, values


@pytest.mark.parametrize("shape", [(6, 5), (6,)])
def test_the_reference_device_packs_in_the_recipe_s_order(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed, (a, b) = tensors(shape, shape)
    device = ReferenceDevice()

    def check() -> None:
        storage = device.pack(PackRecipe(("a", "b"), "dense", interleave(2)), packed)
        got = device.download(storage, (12, *shape[1:]))
        expected = np.concatenate([a[:2], b[:2], a[2:4], b[2:4], a[4:], b[4:]])
        np.testing.assert_array_equal(got, expected)

    goes_red(monkeypatch, PackRecipe, "row_order", lambda self, rows: np.arange(sum(rows)), check)


def test_tensors_of_two_widths_are_no_one_weight() -> None:
    packed, _ = tensors((4, 2), (2, 4))
    with pytest.raises(BindingMismatch, match="one width"):
        ReferenceDevice().pack(PackRecipe(("a", "b"), "dense"), packed)
