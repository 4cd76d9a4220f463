"""Files are whole or absent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import ostinato.host.atomic
from ostinato.host import atomic

SRC = Path(ostinato.host.atomic.__file__).parents[2]


def test_the_file_appears_at_the_end_only(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    with atomic.replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert [p.name for p in tmp_path.iterdir()] == ["a.bin"]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    atomic.write_text(tmp_path / "a", "old")

    def fail_halfway():
        with atomic.replacing(tmp_path / "a") as file:
            file.write(b"half")
            raise error

    with pytest.raises(error):
        fail_halfway()
    assert (tmp_path / "a").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_killed_writer_leaves_a_temporary_file_that_is_swept(tmp_path):
    path = tmp_path / "a.bin"
    path.write_bytes(b"old")
    script = (
        "import sys, time; from pathlib import Path; from ostinato.host import atomic\n"
        "with atomic.replacing(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); print('writing', flush=True); time.sleep(60)\n"
    )
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(SRC)}
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"writing\n"
        child.send_signal(signal.SIGKILL)
    assert path.read_bytes() == b"old"
    left = [p for p in tmp_path.iterdir() if p != path]
    assert len(left) == 1
    assert atomic.sweep(tmp_path) == []  # too young: its writer may live
    assert atomic.sweep(tmp_path, name="b.bin", older_than=0) == []  # another file's
    assert atomic.sweep(tmp_path, name="a.bin", older_than=0) == left
    assert list(tmp_path.iterdir()) == [path]


def test_old_leftovers_of_any_file_are_swept_and_nothing_else(tmp_path):
    long_ago = time.time() - 7200
    for name in (".x.abc.partial", "x.partial", ".hidden", "x"):
        (tmp_path / name).write_text("")
        os.utime(tmp_path / name, (long_ago, long_ago))
    (tmp_path / ".y.abc.partial").write_text("")
    assert [p.name for p in atomic.sweep(tmp_path)] == [".x.abc.partial"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [".hidden", ".y.abc.partial", "x", "x.partial"]
