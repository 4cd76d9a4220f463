"""What Python does for a token outside its device: the same for any depth of model, and little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from decode.sessionkit import CAPTURED, HELD, LLAMA_CONFIG, Entry, World, model_of
from decode.test_session_counts import calls_of
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import LAST, Argmax
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.ir import Location
from ostinato.models.llama import LLAMA
from ostinato.runtime.registry import Registry


class Free(ReferenceDevice):
    """A device whose runs cost nothing: results are whatever was there."""

    def compile(self, segment: Any) -> Any:
        return self

    def workspace(self) -> None:
        return None

    def bind(self, slots: Any, workspace: Any, outputs: Any) -> Any:
        return self

    def run(self, env: Any, overlay: Any = None) -> Any:
        return self

    def freeze(self, varying: Any, env: Any) -> Any:
        return self

    def replay(self, values: Any) -> Any:
        return self

    def wait(self) -> None:
        return None


def free() -> World:
    devices = Registry()
    devices.register(Free())
    return World(devices, (Location("reference"),))


def calls(entry: Entry, layers: int, want: Any) -> tuple[int, Mapping[str, int]]:
    """Function calls for a token, of Python's and of C's."""
    place, slot = free(), DecodeSlot()
    model = model_of(LLAMA, replace(LLAMA_CONFIG, n_layers=layers))
    cache = place.cache(model)
    for token in range(4):
        entry(model, [token], cache, place, slot, want=want)
    seen = calls_of(lambda: entry(model, [5], cache, place, slot, want=want))
    return sum(count for name, count in seen.items() if not name.startswith("c ")), seen


@pytest.mark.parametrize("want", [LAST, Argmax()], ids=["logits", "argmax"])
@pytest.mark.parametrize(("entry", "most"), [(HELD, 110), (CAPTURED, 70)], ids=["held", "captured"])
def test_a_token_s_calls_don_t_grow_with_the_layers(entry: Entry, most: int, want: Any) -> None:
    count, few = calls(entry, 2, want)
    _, many = calls(entry, 12, want)
    assert few == many
    assert count <= most, few
