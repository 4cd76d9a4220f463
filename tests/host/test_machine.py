"""What the machine is called."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from ostinato.host.machine import cpu_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: AMD EPYC 9654\n\nprocessor\t: 1\nmodel name\t: AMD EPYC 9654\n",
            "AMD EPYC 9654",
        ),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", None),
        ("model name\t:\n", None),
        (None, None),
    ],
)
def test_the_processor(tmp_path: Path, text: str | None, name: str | None) -> None:
    if text is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(text)
    assert cpu_name(tmp_path) == (name or platform.processor() or platform.machine())
