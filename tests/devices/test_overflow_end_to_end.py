"""A token whose values overflow the KV type spoils what attends it and nothing before it (invariant 13)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import All
from ostinato.device.encoded import EncodedTensor
from ostinato.devices.reference import kernels
from ostinato.formats.encodings import CODECS
from ostinato.ir import encoding as enc
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.weights import WeightSet
from sabotage import goes_red

TOKENS = [1, 2, 3, 7, 4]
LOUD = 7


@pytest.mark.parametrize("which", ["k", "v"])
def test_an_overflow_in_f16_spoils_no_earlier_row(
    tiny: Model, context: InferenceContext, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Channel 0 belongs to one token alone, and K or V multiply it beyond what f16 holds."""
    loud = with_loud_token(tiny, which)

    def check() -> None:
        whole, single = (KvCache.allocate(loud, context, 8, enc.F16) for _ in range(2))
        together = forward_with_kv_context(loud, TOKENS, whole, context, want=All())
        alone = np.stack([forward_with_kv_context(loud, [token], single, context) for token in TOKENS])
        assert np.isfinite(alone[:3]).all()
        assert not np.isfinite(alone[3]).all()
        np.testing.assert_array_equal(np.isnan(together), np.isnan(alone))
        np.testing.assert_allclose(together, alone, atol=1e-4)

    check()
    if which == "v":
        goes_red(monkeypatch, kernels, "selected_product", lambda lanes, w, v: w @ v, check)


def with_loud_token(model: Model, which: str) -> Model:
    weights = dict(model.weights)
    table, product = (dense(weights[name]) for name in ("embedding", f"0.{which}"))
    table[:, 0] = 0
    table[LOUD] = 0
    table[LOUD, 0] = 1
    product[:, 0] = 1e5
    weights |= {"embedding": encoded("embedding", table), f"0.{which}": encoded(f"0.{which}", product)}
    return replace(model, weights=WeightSet(weights))


def dense(tensor: EncodedTensor) -> np.ndarray:
    return CODECS[tensor.encoding].decode(tensor.rows()).reshape(tensor.shape).copy()


def encoded(name: str, array: np.ndarray) -> EncodedTensor:
    array = np.ascontiguousarray(array, np.float32)
    return EncodedTensor(name, array.shape, enc.F32, array.view(np.uint8).reshape(len(array), -1))
