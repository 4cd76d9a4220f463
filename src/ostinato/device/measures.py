"""What a device may offer beside its contract, to those who measure how fast it is or look after it.

Each is a protocol of its own: `isinstance(device, ReadsMemory)` asks for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class Bandwidth(Protocol):
    """The yardstick of decoding: how fast the device's memory is read, in bytes per second."""

    best: float
    """Of all reads so far."""
    samples: list[float]
    """The best of each call of `sample`."""

    def sample(self) -> float:
        """Read some memory, more than fits the caches, by several loops; the best of them."""


@runtime_checkable
class ReadsMemory(Protocol):
    def read_bandwidth(self) -> Bandwidth:
        """A yardstick over memory of its own, freed with it; for the threads that the device has now."""


@dataclass(frozen=True, slots=True, order=True)
class Stage:
    """Steps of a program that do the same kind of work: the kernel, and the weight's name without a layer,
    or nothing."""

    kernel: str
    weight: str = ""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """One run of a program, in seconds. `stages` and `waiting` (for other threads) are means over all threads
    and add up to `total`."""

    total: float
    stages: Mapping[Stage, float]
    waiting: float


class Profile(Protocol):
    def runs(self) -> Sequence[RunTimes]:
        """What ran while the profile was taken, in order."""


@runtime_checkable
class Profiles(Protocol):
    def profiled(self) -> AbstractContextManager[Profile]:
        """Take the times of all runs until the context ends. Results stay the same, runs get a little slower.
        One profile at a time."""


@runtime_checkable
class SelfTesting(Protocol):
    def self_test(self) -> None:
        """Raises an OstinatoError where the device computes wrong results."""
