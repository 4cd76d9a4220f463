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

    @property
    def numpy(self) -> np.dtype[Any]:
        """The numpy type of the same width and meaning."""
        return np.dtype(self.value)

    @property
    def nbytes(self) -> int:
        """Bytes of one element."""
        return self.numpy.itemsize

    @property
    def is_float(self) -> bool:
        return self in (DType.F16, DType.F32)

    def __str__(self) -> str:
        return self.value
