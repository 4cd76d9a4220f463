"""What kernels' IR may not hold, so that what is written is what runs, in that order."""

from __future__ import annotations

import re

_FLAGS = re.compile(r"(?<![%@\w])(?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\s")
_LOOSE = re.compile(
    r"@llvm\.(?:fmuladd|vector\.reduce\.f\w+|exp(?!ect)\w*|log\w*|pow\w*|sin\w*|cos\w*|tan\w*)\."
)


def breaches(ir: str) -> list[str]:
    """Lines with a fast-math flag, or with an intrinsic whose order, rounding or library is LLVM's choice.

    `llvm.fma` is one rounding everywhere; `llvm.fmuladd` may be one or two. Reductions of floats have no
    fixed tree, and the transcendental functions become calls into the C library.
    """
    return [line for line in ir.splitlines() if _FLAGS.search(line) or _LOOSE.search(line)]
