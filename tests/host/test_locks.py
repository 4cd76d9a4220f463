"""One process at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import ostinato.host.locks
from ostinato.host.locks import process_lock

SRC = Path(ostinato.host.locks.__file__).parents[2]
HOLDER = (
    "import sys; from pathlib import Path; from ostinato.host.locks import process_lock\n"
    "with process_lock(Path(sys.argv[1])):\n"
    "    print('held', flush=True); sys.stdin.readline()\n"
)


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the lock until it is written to."""
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "lock")]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(SRC)},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"held\n"
        yield child
        child.kill()


def test_a_free_lock_waits_for_nobody(tmp_path):
    with process_lock(tmp_path / "lock", on_wait=lambda: pytest.fail("waited")):
        pass
    with process_lock(tmp_path / "lock", on_wait=lambda: pytest.fail("waited")):
        pass


def test_a_second_process_says_that_it_waits_and_gets_its_turn(tmp_path, holder):
    waits = []

    def on_wait():
        waits.append(holder.poll())
        holder.stdin.write(b"\n")
        holder.stdin.flush()

    with process_lock(tmp_path / "lock", on_wait=on_wait):
        assert waits == [None]  # once, while the holder was at work
    assert holder.wait(10) == 0


def test_a_killed_holder_frees_it(tmp_path, holder):
    with process_lock(tmp_path / "lock", on_wait=holder.kill):
        pass


def test_threads_of_one_process_exclude_each_other(tmp_path):
    inside, most = 0, 0

    def work():
        nonlocal inside, most
        for _ in range(5):
            with process_lock(tmp_path / "lock"):
                inside += 1
                most = max(most, inside)
                time.sleep(0.01)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert most == 1


def test_an_error_inside_frees_it(tmp_path):
    with pytest.raises(RuntimeError), process_lock(tmp_path / "lock"):
        raise RuntimeError
    with process_lock(tmp_path / "lock", on_wait=lambda: pytest.fail("still held")):
        pass


def test_a_folder_that_is_none_is_an_os_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"), process_lock(tmp_path / "file" / "lock"):
        pass
