"""Element types as operations see them; how bytes lie in memory is `Encoding`'s business."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np


class DType(Enum):
    """The type of one element of a node's value."""

    F32 = "float32"
    F16 = "float16"
    I64 = "int64"
    BOOL = "bool"

    def __init__(self, name: str) -> None:
        self.numpy: np.dtype[Any] = np.dtype(name)
        """The numpy type of the same width and meaning."""
        self.nbytes: int = self.numpy.itemsize
        """Bytes of one element."""

    @property
    def is_float(self) -> bool:
        return self in (DType.F16, DType.F32)

    def __str__(self) -> str:
        return self.value
