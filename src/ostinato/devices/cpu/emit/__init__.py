"""A small typed vector language that emits LLVM IR text: Python runs when a plan is built, the IR runs at
every token."""

from __future__ import annotations
