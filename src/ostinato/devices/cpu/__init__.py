"""The CPU device: kernels generated as LLVM IR from Python, run by a tape on a pool of threads."""

from __future__ import annotations
