"""What Linux tells of an aarch64 CPU, in LLVM's names.

LLVM itself asks /proc/cpuinfo, and translates neither of these (getHostCPUFeatures, LLVM 22). The bits are
those of arch/arm64/include/uapi/asm/hwcap.h in Linux.
"""

from __future__ import annotations

import ctypes
import platform
import sys

_AT_HWCAP, _AT_HWCAP2 = 16, 26
_BITS = {"dotprod": (_AT_HWCAP, 20), "i8mm": (_AT_HWCAP2, 13)}


def features() -> frozenset[str]:
    """Which of the features that sets require this CPU and its system have; none on other machines."""
    if sys.platform != "linux" or platform.machine() != "aarch64":
        return frozenset()
    return frozenset(name for name, (word, bit) in _BITS.items() if auxiliary(word) >> bit & 1)


def auxiliary(word: int) -> int:
    """getauxval(3), or 0 where the C library lacks it."""
    try:
        ask = ctypes.CDLL(None).getauxval
    except (AttributeError, OSError):
        return 0
    ask.restype, ask.argtypes = ctypes.c_ulong, [ctypes.c_ulong]
    return int(ask(word))
