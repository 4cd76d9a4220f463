"""Functions of float32 vectors of any lane count, all over one core for powers of two.

Errors are those that `tests/devices/cpu/test_math.py` finds; an ulp is one of the result.
"""

from __future__ import annotations

from ostinato.devices.cpu.emit.builder import Function, Value
from ostinato.devices.cpu.emit.types import I32

_LOG2_E = 1.4426950408889634
_SQRT_2_OVER_PI = 0.7978845608028654

# (2^r - 1) / r on |r| <= 1/2, lowest power first: minimax in the relative error of 2^r (3e-9), each rounded
# to float32 before the next ones were fitted.
_POWERS = (
    0.6931471824645996,
    0.24022647738456726,
    0.05550359562039375,
    0.009618503041565418,
    0.0013390998356044292,
    0.00015327864093706012,
)

# Adding it rounds to an integer n, half to even, and leaves n + 254 in the low nine bits: twice the bias of
# an exponent, for the two factors that the core makes of 2^n.
_ROUND = 1.5 * 2.0**23 + 254.0

# tanh(x)/x - 1 over x² for |x| <= 0.625, highest power first (Moshier's Cephes library, tanhf.c).
_TANH = (
    -5.70498872745e-3,
    2.06390887954e-2,
    -5.37397155531e-2,
    1.33314422036e-1,
    -3.33332819422e-1,
)


def exp2(f: Function, x: Value) -> Value:
    """2^x within 1.1 ulp, subnormal results included. -inf gives 0, inf inf, NaN NaN."""
    x = _clamped(f, x, -151.0, 129.0)
    rounder = x + _ROUND
    return _power(f, x - (rounder - _ROUND), rounder)


def exp(f: Function, x: Value) -> Value:
    """e^x within 1.5 ulp, subnormal results included. -inf gives 0, inf inf, NaN NaN."""
    x = _clamped(f, x, -105.0, 89.5)
    rounder = f.fma(x, f.const(x.type, _LOG2_E), f.const(x.type, _ROUND))
    n = rounder - _ROUND
    # ln 2 in two parts (Cody & Waite 1980): n times the first is exact, so it needs no fma to cancel exactly.
    rest = f.fma(n, f.const(x.type, -0.693359375), x)
    rest = f.fma(n, f.const(x.type, 2.12194440054690583e-4), rest)
    return _power(f, rest * _LOG2_E, rounder)


def sigmoid_product(f: Function, x: Value, gate: Value) -> Value:
    """x / (1 + e^-gate): a zero of x's sign where e^-gate is infinite, so gate below -88.7."""
    return x / (exp(f, -gate) + 1.0)


def silu(f: Function, x: Value) -> Value:
    """x / (1 + e^-x) within 3 ulp, -0 below -88.7; NaN for -inf, as `ir.ops.nn.Silu` has it."""
    return sigmoid_product(f, x, x)


def gelu_tanh(f: Function, x: Value) -> Value:
    """`ir.ops.nn.GeluTanh`, with (1 + tanh u)/2 = 1/(1 + e^-2u): nothing cancels where u is very negative."""
    inner = (x + x * x * x * 0.044715) * (2.0 * _SQRT_2_OVER_PI)
    return sigmoid_product(f, x, inner)


def tanh(f: Function, x: Value) -> Value:
    """tanh x within 1.5 ulp; NaN gives NaN."""
    size = f.intrinsic("fabs", x)
    square = size * size
    series = f.const(x.type, _TANH[0])
    for coefficient in _TANH[1:]:
        series = f.fma(series, square, f.const(x.type, coefficient))
    near = f.fma(series * square, size, size)
    far = 1.0 - 2.0 / (exp(f, size + size) + 1.0)
    return f.intrinsic("copysign", size.lt(0.625).select(near, far), x)


def _clamped(f: Function, x: Value, low: float, high: float) -> Value:
    """`x` where its power of two is neither 0 nor infinite; a NaN stays one, being the second operand."""
    return f.const(x.type, low).max(f.const(x.type, high).min(x))


def _power(f: Function, r: Value, rounder: Value) -> Value:
    """2^(n + r), |r| <= 1/2, where the low nine bits of `rounder` hold n + 254, -151 <= n <= 130.

    2^n is two factors, so that results beyond either end of the normal numbers come of plain multiplication.
    """
    series = f.const(r.type, _POWERS[-1])
    for coefficient in _POWERS[-2::-1]:
        series = f.fma(series, r, f.const(r.type, coefficient))
    power = f.fma(series, r, f.const(r.type, 1.0))
    bits = rounder.cast("bitcast", I32.x(r.type.lanes))
    half = bits >> 1
    for part in (half, bits - half):
        power = power * (part << 23).cast("bitcast", r.type)
    return power
