"""What the system says about this process's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.host.usage import MemoryUse, memory_use

STATUS = """Name:\tostinato
VmPeak:\t  999999 kB
VmHWM:\t    3000 kB
VmRSS:\t    2500 kB
RssAnon:\t    1000 kB
RssFile:\t     500 kB
RssShmem:\t      24 kB
Threads:\t3
"""


def told(root: Path, status: str) -> MemoryUse | None:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/status").write_text(status)
    return memory_use(root)


def test_by_kind_and_the_peak(tmp_path: Path) -> None:
    assert told(tmp_path, STATUS) == MemoryUse(1000 * 1024, 524 * 1024, 3000 * 1024)


@pytest.mark.parametrize(
    "status", ["", "VmHWM:\t3000 kB\n", STATUS.replace("RssAnon:\t    1000", "RssAnon:\t?")]
)
def test_a_system_that_does_not_tell(tmp_path: Path, status: str) -> None:
    assert told(tmp_path, status) is None


def test_no_proc(tmp_path: Path) -> None:
    assert memory_use(tmp_path) is None


def test_what_is_touched_is_counted() -> None:
    before = memory_use()
    if before is None:
        pytest.skip("the system doesn't tell")
    held = bytearray(b"x") * (64 << 20)
    after = memory_use()
    assert after is not None
    assert after.anonymous - before.anonymous > 60 << 20
    assert after.peak >= before.anonymous + len(held)
