"""What a device is: contracts only. Implementations live under `ostinato.devices`."""

from __future__ import annotations
