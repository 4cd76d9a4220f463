"""What all programs of one CPU device share."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.isa import Isa
from ostinato.devices.cpu.pool import ThreadPool


@dataclass
class Engine:
    """The instruction set, where compiled code is kept, and how many threads run it."""

    isa: Isa
    cache: CodeCache | None
    threads: int

    @property
    def pool(self) -> ThreadPool:
        return ThreadPool.of(self.threads, self.isa)
