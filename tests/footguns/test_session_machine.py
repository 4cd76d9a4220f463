"""Several models and caches through one slot, in any order of events: every step is its replan's bits."""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from decode.sessionkit import ENTRIES, MODELS, Entry, World, same_bits
from devices.delayed import DelayedDevice, InjectedFailure
from devices.frail import FrailCpu
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.slot import DecodeSlot
from ostinato.decode.want import All, Argmax, Hidden, Last
from ostinato.device.traits import WritePath
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.errors import CapacityExceeded
from ostinato.ir import Location
from ostinato.ir import encoding as enc
from ostinato.runtime.registry import Registry

pytestmark = pytest.mark.usefixtures("one_thread")

BATCHES = 10
STEPS_AFTER = 4
"""An event counts for so many compared steps."""
EXTRA = Location("reference", 7)

entries = st.sampled_from(ENTRIES)
wants = st.sampled_from([Last(), Last(), Argmax(), Hidden(), All()])
tokens = st.integers(0, 47)


class Machine(RuleBasedStateMachine):
    """`tally` counts compared decode steps by the events that came shortly before, over all runs."""

    kind: ClassVar[str] = "delayed"
    tally: ClassVar[Counter[str]] = Counter()
    rules: ClassVar[int] = 0
    kernels: ClassVar[int] = 150
    """About so many in a step."""

    @initialize(
        dynamic=st.booleans(),
        late=st.booleans(),
        path=st.sampled_from([None, *WritePath]),
        name=st.sampled_from(sorted(MODELS)),
    )
    def begin(self, dynamic: bool, late: bool, path: WritePath | None, name: str) -> None:
        devices = Registry()
        for ordinal in (0, 1):
            devices.register(self.device_of(ordinal, dynamic, late))
        places = (Location(self.kind, 0), Location(self.kind, 1))
        self.world, self.spread = World(devices, places[:1]), World(devices, places)
        self.path = path
        self.slot = DecodeSlot()
        self.recent: dict[str, int] = {}
        self.caches: dict[tuple[str, str], KvCache] = {}
        self.use("start", name, "first")

    def device_of(self, ordinal: int, dynamic: bool, late: bool) -> Any:
        return DelayedDevice(ordinal, dynamic_rows=dynamic, late=late)

    # bookkeeping

    def cache_of(self, name: str, kind: str) -> KvCache:
        model, key = MODELS[name](), (name, kind)
        if key not in self.caches:
            made = {
                "first": lambda: self.world.cache(model, 24),
                "second": lambda: self.world.cache(model, 24),
                "longer": lambda: self.world.cache(model, 30),
                "half": lambda: self.world.cache(model, 24, enc.F16),
                "spread": lambda: self.spread.cache(model, 24),
            }
            self.caches[key] = made[kind]()
        return self.caches[key]

    def use(self, event: str, name: str, kind: str) -> None:
        self.name, self.which = name, kind
        self.cache, self.model = self.cache_of(name, kind), MODELS[name]()
        self.happened(event)

    def happened(self, event: str) -> None:
        self.recent[event] = STEPS_AFTER
        type(self).rules += 1

    def make_room(self, count: int) -> None:
        if self.cache.length + count > self.cache.capacity:
            before = self.world.checksum(self.cache)
            for entry in ENTRIES:
                with pytest.raises(CapacityExceeded):
                    self.run(entry, [1] * (self.cache.capacity - self.cache.length + 1))
            assert self.world.checksum(self.cache) == before
            self.cache.truncate_to(self.cache.length // 3)
            self.recent["truncate"] = self.recent["full"] = STEPS_AFTER

    def run(self, entry: Entry, step: list[int], want: Any = Last()) -> Any:  # noqa: B008
        return entry(self.model, step, self.cache, self.world, self.slot, want=want, write_path=self.path)

    def compare(self, entry: Entry, step: list[int], want: Any = Last()) -> None:  # noqa: B008
        self.make_room(len(step))
        length = self.cache.length
        expected = self.world.oracle(self.model, step, self.cache, want, self.path)
        same_bits(self.run(entry, step, want), expected)
        assert self.cache.length == length + len(step)
        if len(step) == 1:
            for event in [event for event, left in self.recent.items() if left]:
                self.tally[event] += 1
                self.recent[event] -= 1
            self.tally[entry.name] += 1

    # what happens

    @rule(entry=entries, token=tokens, want=wants)
    def decode(self, entry: Entry, token: int, want: Any) -> None:
        type(self).rules += 1
        self.compare(entry, [token], want)

    @rule(entry=entries, seed=st.integers(0, 99), count=st.integers(2, 9), want=wants)
    def prefill(self, entry: Entry, seed: int, count: int, want: Any) -> None:
        self.longer_step(entry, seed, count, want)

    @rule(entry=entries, seed=st.integers(0, 99), count=st.integers(2, 4))
    def verify(self, entry: Entry, seed: int, count: int) -> None:
        """As speculation does: every row's logits, then back to where the guess was right."""
        self.longer_step(entry, seed, count, All())
        self.cache.truncate_to(self.cache.length - 2)
        self.happened("verify")
        self.compare(entry, [seed % 48])

    def longer_step(self, entry: Entry, seed: int, count: int, want: Any) -> None:
        step = [int(token) for token in np.random.default_rng(seed).integers(0, 48, count)]
        self.compare(entry, step, want)
        self.happened("prefill")
        self.compare(entry, [seed % 48])

    @rule(entry=entries, part=st.integers(0, 3), token=tokens)
    def truncate(self, entry: Entry, part: int, token: int) -> None:
        self.cache.truncate_to(self.cache.length * part // 4)
        self.happened("truncate")
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens)
    def clear(self, entry: Entry, token: int) -> None:
        self.cache.clear()
        self.happened("clear")
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens)
    def new_slabs(self, entry: Entry, token: int) -> None:
        """A layer's slabs move; the old ones are freed, and read as NaN from then on."""
        copied = self.world.copy(self.cache)
        self.cache.set_layer(1, *copied.slabs(1))
        self.happened("new slabs")
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens)
    def same_geometry(self, entry: Entry, token: int) -> None:
        self.use("same geometry", self.name, "second" if self.which == "first" else "first")
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens, kind=st.sampled_from(["longer", "half"]))
    def other_geometry(self, entry: Entry, token: int, kind: str) -> None:
        self.use("other geometry", self.name, kind if kind != self.which else "first")
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens)
    def unknown_location(self, entry: Entry, token: int) -> None:
        self.use("unknown location", self.name, "spread")
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens, name=st.sampled_from(sorted(MODELS)))
    def other_model(self, entry: Entry, token: int, name: str) -> None:
        self.use("other model", name, self.which)
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens)
    def fresh_cache(self, entry: Entry, token: int) -> None:
        """The old cache is freed."""
        del self.caches[self.name, self.which]
        self.use("fresh cache", self.name, self.which)
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens)
    def poison(self, entry: Entry, token: int) -> None:
        self.world.poison(self.cache)
        self.happened("poison")
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens, back=st.booleans())
    def topology(self, entry: Entry, token: int, back: bool) -> None:
        devices = self.world.devices
        if back:
            device = devices.device(self.world.places[0])
            devices.unregister(device.location)
            devices.register(device)
        elif EXTRA in devices:
            devices.unregister(EXTRA)
        else:
            devices.register(ReferenceDevice(EXTRA.ordinal))
        self.happened("topology")
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens, after=st.integers(0, 150), other=st.booleans())
    def failure(self, entry: Entry, token: int, after: int, other: bool) -> None:
        self.make_room(1)
        cells, length = self.world.cells(self.cache), self.cache.length
        place = Location(self.kind, int(other and self.which == "spread"))
        device = self.world.devices.device(place)
        device.fail_after = after * self.kernels // 150
        try:
            self.run(entry, [token])
            self.cache.truncate_to(length)  # it needed fewer kernels
        except InjectedFailure:
            self.happened("failure")
        device.fail_after = None
        assert self.cache.length == length
        for old, new in zip(cells, self.world.cells(self.cache), strict=True):
            same_bits(new, old)
        self.compare(entry, [token])

    @rule(entry=entries, token=tokens)
    def rebound_by_hand(self, entry: Entry, token: int) -> None:
        """Someone re-binds the sessions to a twin, as the public surface allows."""
        twin = self.world.copy(self.cache)
        for session in self.slot.sessions.values():
            session.rebind_kv(twin)
        self.happened("re-bound by hand")
        self.compare(entry, [token])


EVENTS = (
    "start", "prefill", "verify", "truncate", "clear", "new slabs", "same geometry", "other geometry",
    "unknown location", "other model", "fresh cache", "poison", "topology", "failure", "re-bound by hand",
)  # fmt: skip


class CpuMachine(Machine):
    """The same on the CPU device; its regions are few kernels, its runs over when the call returns."""

    kind = "cpu"
    kernels = 24

    def device_of(self, ordinal: int, dynamic: bool, late: bool) -> Any:
        return FrailCpu(ordinal, threads=1 + dynamic + late)


def run_examples(machine: type[Machine], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def too_few(machine: type[Machine], least: int, rules: int) -> dict[str, int]:
    """What has been compared less often than it should."""
    needed = {"rules": rules, **dict.fromkeys(EVENTS, least)}
    needed |= {entry.name: rules // 5 for entry in ENTRIES}
    found = Counter(machine.tally, rules=machine.rules)
    return {name: found[name] for name, count in needed.items() if found[name] < count}


@pytest.mark.parametrize(
    ("machine", "examples", "least", "rules"), [(Machine, 15, 100, 2000), (CpuMachine, 6, 25, 750)]
)
def test_any_order_of_events(machine: type[Machine], examples: int, least: int, rules: int) -> None:
    """Batches of examples, the same every time, until each event has been met often enough. How many that
    takes may change with any number in the project's sources: hypothesis picks values from them."""
    machine.tally, machine.rules = Counter(), 0
    for batch in range(BATCHES):
        run_examples(seed(batch)(machine), examples)
        if not too_few(machine, least, rules):
            break
    print(machine.rules, machine.tally)  # shown when it fails
    assert not too_few(machine, least, rules)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [Machine, CpuMachine])
def test_any_order_of_events_at_length(machine: type[Machine]) -> None:
    machine.tally, machine.rules = Counter(), 0
    run_examples(seed(secrets.randbits(64))(machine), 600)
    print(machine.rules, machine.tally)
    assert not too_few(machine, least=1000, rules=25_000)
