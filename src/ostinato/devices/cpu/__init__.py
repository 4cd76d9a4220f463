"""The CPU device: kernels generated as LLVM IR from Python, and a tape that runs them on a pool of threads."""

from __future__ import annotations
