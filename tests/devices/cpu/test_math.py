"""Functions of vectors, against float64 over dense sweeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import pi, sqrt

import numpy as np
import pytest

from devices.cpu.running import HOST_ISAS, Kernels, aligned
from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import F32
from ostinato.devices.cpu.kernels import math
from ostinato.devices.cpu.kernels.kernel import Kernel

_GELU_SLOPE = 2 * sqrt(2 / pi)


@dataclass(frozen=True)
class Map(Kernel):
    """A function of each vector of `lanes`."""

    name: str
    lanes: int = 16

    @property
    def params(self) -> tuple[str, ...]:
        return ("x", "out")

    def body(self, f: Function, args: dict[str, Value]) -> None:
        type = F32.x(self.lanes)
        for i, _ in f.range(f["low"], f["high"]):
            value = getattr(math, self.name)(f, f.load(type, args["x"], i * type.nbytes))
            f.store(value, args["out"], i * type.nbytes)


FORMULAS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "exp2": np.exp2,
    "exp": np.exp,
    "tanh": np.tanh,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu_tanh": lambda x: x / (1 + np.exp(-_GELU_SLOPE * (x + 0.044715 * x**3))),
}


@pytest.fixture(scope="module", params=HOST_ISAS, ids=lambda isa: isa.name)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    made = [Map(name, lanes) for name in FORMULAS for lanes in (8, 16, 32)]
    return Kernels(request.param, made)


def applied(kernels: Kernels, name: str, x: np.ndarray, lanes: int = 16) -> np.ndarray:
    turns = -(-len(x) // lanes)
    room, out = aligned(turns * lanes), aligned(turns * lanes)
    room[: len(x)] = x
    kernels.run(Map(name, lanes), [room, out], 0, turns)
    return out[: len(x)]


def sweep(low: float, high: float) -> np.ndarray:
    """Evenly spaced values, and magnitudes of every exponent, within the bounds."""
    even = np.linspace(low, high, 600_000).astype(np.float32)
    sizes = np.exp2(np.linspace(-149, 7, 100_000)).astype(np.float32)
    both = np.concatenate([sizes, -sizes])
    return np.concatenate([even, both[(both >= low) & (both <= high)]])


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """Errors in units of the float32 that is nearest to what is wanted; 0 where both are infinite."""
    with np.errstate(over="ignore"):
        nearest = want.astype(np.float32)
    infinite = np.isinf(nearest)
    assert (got[infinite] == nearest[infinite]).all()
    error = np.abs(got[~infinite].astype(np.float64) - want[~infinite])
    return error / np.spacing(np.abs(nearest[~infinite]))


@pytest.mark.parametrize(
    ("name", "low", "high", "bound"),
    [
        ("exp2", -160, 128.5, 1.1),
        ("exp", -110, 90, 1.5),
        ("tanh", -12, 12, 1.5),
        ("silu", -88.7, 100, 3),
    ],
)
def test_errors_over_a_dense_sweep(
    kernels: Kernels, name: str, low: float, high: float, bound: float
) -> None:
    x = sweep(low, high)
    got = applied(kernels, name, x)
    assert ulps(got, FORMULAS[name](x.astype(np.float64))).max() <= bound


def test_gelu_over_a_dense_sweep(kernels: Kernels) -> None:
    x = sweep(-10, 20)
    got, exact = applied(kernels, "gelu_tanh", x), x.astype(np.float64)
    # The argument of the exponential is rounded, so its size is how much the result's error grows.
    grows = np.abs(_GELU_SLOPE * (exact + 0.044715 * exact**3)) * (exact < 0)
    assert (ulps(got, FORMULAS["gelu_tanh"](exact)) <= 3 + 3 * grows).all()


def test_near_every_power_of_two(kernels: Kernels) -> None:
    halves = np.arange(-300, 257).astype(np.float32) / 2  # where the reduction changes over
    x = np.concatenate(
        [halves, np.nextafter(halves, np.float32(-999)), np.nextafter(halves, np.float32(999))]
    )
    got = applied(kernels, "exp2", x)
    assert ulps(got, np.exp2(x.astype(np.float64))).max() <= 1.1
    whole = halves[(halves % 1 == 0) & (halves > -127) & (halves < 128)]
    np.testing.assert_array_equal(applied(kernels, "exp2", whole), np.exp2(whole.astype(np.float64)))


def test_ends_of_the_range(kernels: Kernels) -> None:
    x = np.array([np.inf, -np.inf, 3.4e38, -3.4e38, 0.0, -0.0, 1e-45, -1e-45], np.float32)
    inf = np.inf
    expected = [inf, 0, inf, 0, 1, 1, 1, 1]
    np.testing.assert_array_equal(applied(kernels, "exp2", x), expected)
    np.testing.assert_array_equal(applied(kernels, "exp", x), expected)
    np.testing.assert_array_equal(applied(kernels, "exp", np.float32([88.8, -104])), [inf, 0])
    np.testing.assert_array_equal(applied(kernels, "exp2", np.float32([128, -150])), [inf, 0])
    tanh = applied(kernels, "tanh", x)
    np.testing.assert_array_equal(tanh, np.float32([1, -1, 1, -1, 0, -0.0, 1e-45, -1e-45]))
    assert np.signbit(tanh[5])
    for name in ("silu", "gelu_tanh"):
        got = applied(kernels, name, x)
        np.testing.assert_array_equal(got[[0, 2, 3, 4, 5]], np.float32([inf, 3.4e38, 0, 0, 0]))
        assert np.isnan(got[1]), "as in its definition"


@pytest.mark.parametrize("name", FORMULAS)
def test_any_nan_gives_nan(kernels: Kernels, name: str) -> None:
    payloads = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF, 0x7FFFFFFF, 0xFF800123], np.uint32)
    assert np.isnan(applied(kernels, name, payloads.view(np.float32))).all()


@pytest.mark.parametrize("name", FORMULAS)
def test_an_element_has_the_same_bits_in_any_lane_of_any_width(kernels: Kernels, name: str) -> None:
    x = sweep(-30, 30)[::37]
    whole = applied(kernels, name, x).view(np.uint32)
    np.testing.assert_array_equal(applied(kernels, name, x[::-1])[::-1].view(np.uint32), whole)
    for lanes in (8, 32):
        np.testing.assert_array_equal(applied(kernels, name, x, lanes).view(np.uint32), whole)
