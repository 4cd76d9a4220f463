"""Model families, one file each, and the contract they are written against."""

from __future__ import annotations
