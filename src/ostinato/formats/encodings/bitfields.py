"""Small numbers packed in bytes, as ggml's quants and scales are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def bit_fields(packed: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """The fields of `width` bits of each byte, planes of the same field together.

    `[..., bytes]` becomes `[..., 8 / width, bytes]`: first every byte's lowest field, last every byte's
    highest. ggml packs so, so that one shift unpacks a whole vector.
    """
    mask = np.uint8((1 << width) - 1)
    packed = np.ascontiguousarray(packed)
    fields = np.empty((*packed.shape[:-1], 8 // width, packed.shape[-1]), np.uint8)
    for number in range(8 // width):
        fields[..., number, :] = (packed >> np.uint8(number * width)) & mask
    return fields


def byte_fields(packed: NDArray[np.uint8], width: int) -> NDArray[np.uint8]:
    """The fields of `width` bits, each byte's own side by side, lowest first.

    `[n, bytes]` becomes `[n, bytes * 8 / width]`. Scales are packed so.
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    fields = (packed[..., None] >> shifts) & np.uint8((1 << width) - 1)  # [n, bytes, 8 / width]
    return fields.reshape(len(packed), -1)
