"""LLVM's pages leave this process once nothing is compiled, and only those that a file can bring back."""

from __future__ import annotations

import sys

import pytest

from ostinato.devices.cpu import idle_pages
from ostinato.devices.cpu.compiler import compile_module
from ostinato.devices.cpu.isa import select
from sabotage import goes_red

IR = "define i64 @{name}(i64 %x) {{\n  %y = add i64 %x, 1\n  ret i64 %y\n}}\n"
MAPS = """\
7f0000000000-7f0000002000 r--p 00000000 08:01 11                         /lib/libllvmlite.so
Rss:                   8 kB
Anonymous:             0 kB
7f0000002000-7f0000004000 r-xp 00002000 08:01 11                         /lib/libllvmlite.so
Anonymous:             0 kB
7f0000004000-7f0000005000 r--p 00004000 08:01 11                         /lib/libllvmlite.so
Anonymous:             4 kB
7f0000005000-7f0000006000 rw-p 00005000 08:01 11                         /lib/libllvmlite.so
Anonymous:             0 kB
7f0000006000-7f0000007000 r-xp 00000000 08:01 12                         /lib/libc.so.6
Anonymous:             0 kB
7f0000007000-7f0000008000 r--p 00000000 00:00 0
Anonymous:             0 kB
"""


def check_only_what_lies_in_the_file() -> None:
    assert list(idle_pages.read_only(MAPS)) == [(0x7F0000000000, 0x2000), (0x7F0000002000, 0x2000)]


def test_only_what_lies_in_the_file() -> None:
    check_only_what_lies_in_the_file()


def test_sabotage_every_mapping(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = [(0x7F0000000000, 0x2000), (0x7F0000002000, 0x2000), (0x7F0000004000, 0x1000)]
    goes_red(
        monkeypatch, idle_pages, "read_only", lambda _: iter(everything), check_only_what_lies_in_the_file
    )


@pytest.mark.skipif(sys.platform != "linux", reason="/proc and madvise are Linux's")
def test_code_is_compiled_and_runs_after_the_pages_went() -> None:
    isa = select()
    compile_module(IR.format(name="before"), isa, None)
    resident = _resident()
    assert idle_pages.release_compiler() > 1 << 24
    assert _resident() < resident
    assert compile_module(IR.format(name="after"), isa, None).address("after")


def test_another_system_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert idle_pages.release_compiler() == 0


def _resident() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("RssFile"))
