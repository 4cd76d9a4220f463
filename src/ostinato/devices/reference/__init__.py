"""The reference device: numpy, float32, every composite op by its decomposition."""

from __future__ import annotations

from ostinato.devices.reference.device import ReferenceDevice

__all__ = ["ReferenceDevice"]
