"""A device with a clock around what runs on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from ostinato.device.contract import CaptureRefusal, Device
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.registry import Registry


@dataclass
class Clock:
    """Seconds spent inside the device: in Bound.run or Captured.replay, and Pending.wait."""

    seconds: float = 0.0

    def __call__(self, run: Callable[..., Any], *args: Any) -> Any:
        began = time.perf_counter()
        try:
            return run(*args)
        finally:
            self.seconds += time.perf_counter() - began


def clocked(inference: InferenceContext) -> tuple[InferenceContext, Clock]:
    """The context's device alone, clocked. It packs weights of its own: it is another device."""
    clock = Clock()
    device = inference.devices.device(inference.location)
    devices = Registry()
    devices.register(cast(Device, _ClockedDevice(device, clock)))
    return InferenceContext(inference.location, devices), clock


class _Clocked:
    """An object of the device contract, with a clock around what runs on the device."""

    def __init__(self, inner: Any, clock: Clock) -> None:
        self._inner = inner
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _ClockedDevice(_Clocked):
    def compile(self, *args: Any) -> _ClockedProgram:
        return _ClockedProgram(self._inner.compile(*args), self._clock)


class _ClockedProgram(_Clocked):
    def bind(self, *args: Any) -> _ClockedRun:
        return _ClockedRun(self._inner.bind(*args), self._clock)


class _ClockedRun(_Clocked):
    """A Bound, a Captured or a Pending."""

    def run(self, *args: Any) -> _ClockedRun:
        return _ClockedRun(self._clock(self._inner.run, *args), self._clock)

    def replay(self, *args: Any) -> _ClockedRun:
        return _ClockedRun(self._clock(self._inner.replay, *args), self._clock)

    def wait(self) -> None:
        self._clock(self._inner.wait)

    def freeze(self, *args: Any) -> _ClockedRun | CaptureRefusal:
        made = self._inner.freeze(*args)
        return made if isinstance(made, CaptureRefusal) else _ClockedRun(made, self._clock)
