"""What runs plans: the device registry, weight sets and their packed copies, and the inference context."""

from __future__ import annotations
