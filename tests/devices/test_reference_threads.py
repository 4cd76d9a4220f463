"""BLAS threads: the number asked for is what kernels run under, and what was there comes back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

from devices.running import const
from ostinato import devices
from ostinato.devices.cpu.device import CpuDevice
from ostinato.devices.reference import ReferenceDevice, blas, kernels
from ostinato.devices.reference.program import Threads
from ostinato.ir import Graph, Location, SymEnv
from ostinato.ir.ops import elementwise
from ostinato.runtime import registry as registry_module
from ostinato.runtime.context import Bindings, InferenceContext
from ostinato.runtime.registry import Registry
from sabotage import goes_red, nothing


def blas_now() -> int:
    (count,) = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    return int(count)


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    with threadpool_limits(3, user_api="blas"):
        if blas_now() != 3:
            pytest.skip("this BLAS keeps its own count")
        yield


def seen_inside(devices: Registry, monkeypatch: pytest.MonkeyPatch) -> int:
    """BLAS threads while a kernel of reference:0 runs."""
    seen: list[int] = []
    add = kernels.KERNELS[elementwise.Add]
    graph = Graph()
    x, value = const(graph, np.ones(2, np.float32))
    with monkeypatch.context() as patch:
        patch.setitem(kernels.KERNELS, elementwise.Add, lambda *a: (seen.append(blas_now()), add(*a))[1])
        InferenceContext("reference", devices).realize(
            graph, [(x + x).id], Bindings(data={x.id: value}), SymEnv()
        )
    (count,) = seen
    return count


def test_kernels_run_under_the_number_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def check() -> None:
        registry = Registry()
        registry.register(ReferenceDevice(threads=1))
        assert seen_inside(registry, monkeypatch) == 1
        assert blas_now() == 3
        device = registry.device(Location("reference"))
        assert isinstance(device, ReferenceDevice)
        device.set_threads(2)
        assert seen_inside(registry, monkeypatch) == 2
        assert blas_now() == 3

    goes_red(monkeypatch, Threads, "limited", lambda self: nullcontext(), check)


def test_without_a_number_blas_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    registry.register(ReferenceDevice())
    assert seen_inside(registry, monkeypatch) == 3


def overlapping() -> None:
    """The second run enters while the first is inside and leaves after it."""
    first_in, second_in, first_out = (threading.Event() for _ in range(3))
    seen: list[int] = []

    def second() -> None:
        first_in.wait(10)
        with blas.blas_threads(1):
            second_in.set()
            first_out.wait(10)
            seen.append(blas_now())

    thread = threading.Thread(target=second)
    thread.start()
    with blas.blas_threads(1):
        first_in.set()
        second_in.wait(10)
    first_out.set()
    thread.join(10)
    assert seen == [1]  # still limited when the first one left
    assert blas_now() == 3


def test_overlapping_runs_leave_the_process_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    class Uncounted(blas.Limiter):
        """Each run puts back what it saw."""

        def _enter(self, count: int) -> None:
            seen.append(blas._limit(blas._knobs(), count))

        def _leave(self) -> None:
            blas._restore(seen.pop(0))

    seen: list[list[tuple[Any, int]]] = []
    goes_red(monkeypatch, blas, "blas_threads", Uncounted().at, overlapping)


def test_whichever_thread_limited_blas_before_or_does_so_after() -> None:
    """Newer versions of threadpoolctl let one thread at a time change OpenBLAS's count: this one here, by the
    fixture. A run isn't held up by that, and claims nothing for itself."""
    seen: list[int] = []

    def run() -> None:
        with blas.blas_threads(1):
            seen.append(blas_now())
        seen.append(blas_now())

    def someone_else() -> None:
        with threadpool_limits(2, user_api="blas"):
            seen.append(blas_now())

    def elsewhere(work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(10)

    elsewhere(run)
    assert seen == [1, 3]
    for library in ThreadpoolController().lib_controllers:
        getattr(library, "clear_controlling_thread", nothing)(force=True)
    elsewhere(someone_else)
    run()
    elsewhere(someone_else)
    assert seen == [1, 3, 2, 1, 3, 2]


class Dial:
    """A BLAS that counts how often it is set."""

    def __init__(self, count: int) -> None:
        self.count, self.sets = count, 0

    def set(self, count: int) -> None:
        self.count, self.sets = count, self.sets + 1


@pytest.mark.parametrize("thread_local", [False, True])
def test_a_count_that_is_right_already_is_left_alone(
    thread_local: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    right, wrong = Dial(2), Dial(5)
    knobs = [blas.Knob(lambda dial=dial: dial.count, dial.set, thread_local) for dial in (right, wrong)]
    monkeypatch.setattr(blas, "_knobs", lambda: knobs)
    with blas.Limiter().at(2):
        assert (right.count, wrong.count) == (2, 2)
    assert (right.count, wrong.count) == (2, 5)
    assert (right.sets, wrong.sets) == (0, 2)


@pytest.mark.parametrize("layer", ["pthreads", "openmp"])
def test_a_library_is_asked_directly_where_its_count_is_the_process_s(layer: str) -> None:
    class Library:
        internal_api, threading_layer = "openblas", layer

        class dynlib:  # noqa: N801
            scipy_openblas_get_num_threads64_ = staticmethod(lambda: 7)
            scipy_openblas_set_num_threads64_ = staticmethod(lambda count: None)

        get_num_threads = staticmethod(lambda: 8)
        set_num_threads = staticmethod(lambda count: None)

    knob = blas.knob_of(Library())
    assert (knob.get(), knob.thread_local) == ((7, False) if layer == "pthreads" else (8, True))


def test_an_error_inside_gives_the_threads_back() -> None:
    with pytest.raises(ZeroDivisionError), blas.blas_threads(1):
        _ = 1 / 0
    assert blas_now() == 3


def test_defaults_leave_someone_s_own_device_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        location = Location("reference")
        traits = ReferenceDevice().traits

    registry = Registry()
    registry.register(Own())  # type: ignore[arg-type]
    monkeypatch.setattr(registry_module, "registry", registry)
    devices.register_defaults(threads=2)
    assert isinstance(registry.device(Location("reference")), Own)


def test_a_later_call_sets_the_number_for_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry()
    monkeypatch.setattr(registry_module, "registry", registry)
    devices.register_defaults(threads=2)
    assert seen_inside(registry, monkeypatch) == 2
    devices.register_defaults()
    assert seen_inside(registry, monkeypatch) == 2
    devices.register_defaults(threads=1)
    assert seen_inside(registry, monkeypatch) == 1
    cpu = registry.device(Location("cpu"))
    assert isinstance(cpu, CpuDevice)
    assert cpu.engine.threads == 1
    assert registry.generation == 2
