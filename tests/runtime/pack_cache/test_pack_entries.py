"""Entries of packed weights: damaged, shared by processes, of others, and no more than there is room for."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from packkit import KEYS, TINY, Counting, names, only_file, recipes_of, start

from ostinato.engine.opened import open_model
from ostinato.host import kept
from ostinato.runtime import pack_cache
from ostinato.runtime.pack_cache import PAGE, PackCache
from sabotage import goes_red, nothing

# Damage.

SIZES = [0, 1, PAGE - 1, PAGE, 3 * PAGE + 8]


def some(seed: int = 0) -> list[np.ndarray]:
    dice = np.random.default_rng(seed)
    return [dice.integers(0, 256, size, np.uint8) for size in SIZES]


def same(found: Sequence[np.ndarray] | None, expected: Sequence[np.ndarray]) -> bool:
    return found is not None and [each.tobytes() for each in found] == [each.tobytes() for each in expected]


HEAD = PAGE
"""The header of these few, with its padding."""

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda file: b"",
    "header cut": lambda file: file[:100],
    "header alone": lambda file: file[:HEAD],
    "cut short": lambda file: file[:-1],
    "a page short": lambda file: file[:-PAGE],
    "longer": lambda file: file + b"\0",
    "a page longer": lambda file: file + bytes(PAGE),
    "zeros": lambda file: bytes(len(file)),
    "foreign": lambda file: b"\x7fELF" + file[4:],
    "another version of the format": lambda file: file.replace(b"pack 1\n", b"pack 2\n"),
    "another key": lambda file: file.replace(KEYS[0].encode(), KEYS[1].encode()),
    "a size": lambda file: file[:162] + bytes([file[162] ^ 1]) + file[163:],
    "a huge count": lambda file: file[:146] + b"\xff" * 8 + file[154:],
    "a page of zeros": lambda file: file[: HEAD + 2 * PAGE] + bytes(PAGE) + file[HEAD + 3 * PAGE :],
    "pages that changed places": lambda file: (
        file[: 2 * PAGE] + file[3 * PAGE : 4 * PAGE] + file[2 * PAGE : 3 * PAGE] + file[4 * PAGE :]
    ),
    "the last byte": lambda file: file[:-1] + bytes([file[-1] ^ 0x80]),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_dropped(packs: PackCache, damage: str) -> None:
    packs.keep(KEYS[0], some())
    path = only_file(packs)
    whole = path.read_bytes()
    assert same(packs.find(KEYS[0]), some())
    path.unlink()  # not in place: what is mapped stays
    path.write_bytes(DAMAGE[damage](whole))
    assert path.read_bytes() != whole
    assert packs.find(KEYS[0]) is None
    assert not path.exists()
    packs.keep(KEYS[0], some())
    assert path.read_bytes() == whole
    assert same(packs.find(KEYS[0]), some())


def check_every_flipped_bit_is_seen(packs: PackCache) -> None:
    packs.keep(KEYS[0], some())
    path = only_file(packs)
    whole = path.read_bytes()
    covered = 64 + 1 + 64 + 1 + 16 + 8 * (1 + len(SIZES)) + 32  # and the padding after it isn't
    for index in [*range(0, covered, 3), *range(HEAD, len(whole), 97)]:
        file = bytearray(whole)
        file[index] ^= 1 << (index % 8)
        path.unlink(missing_ok=True)
        path.write_bytes(file)
        path.chmod(0o600)
        assert packs.find(KEYS[0]) is None, f"bit {index % 8} of byte {index}"


def test_every_flipped_bit_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter(range(2))
    goes_red(
        monkeypatch, pack_cache, "is_whole", lambda pages, digest: True,
        lambda: check_every_flipped_bit_is_seen(PackCache(tmp_path / str(next(turns)))),
    )  # fmt: skip


def test_a_damaged_entry_is_packed_anew(packs: PackCache) -> None:
    first = start(TINY, packs)
    path = only_file(packs)
    file = bytearray(path.read_bytes())
    file[-1000] ^= 4
    path.unlink()
    path.write_bytes(file)
    again = start(TINY, packs)
    assert not again.mapped
    assert again.weights == first.weights
    assert start(TINY, packs).mapped


# Several processes at once.

HAMMER = """
import sys
from pathlib import Path
import numpy as np
from ostinato.runtime.pack_cache import PackCache

packs, seed, hits = PackCache(Path(sys.argv[1]), max_bytes=int(sys.argv[3])), int(sys.argv[2]), 0
dice = np.random.default_rng(seed)
for _ in range(60):
    number = int(dice.integers(6))
    key, fill = f"{number:064x}", np.random.default_rng(number)
    weights = [fill.integers(0, 256, 3000 * (number + 1), np.uint8) for _ in range(4)]
    if dice.random() < 0.5:
        packs.keep(key, weights)
    else:
        found = packs.find(key)
        assert found is None or all((a == b).all() for a, b in zip(found, weights, strict=True)), key
        hits += found is not None
print(hits)
"""


def test_processes_that_keep_find_and_evict_at_once(packs: PackCache) -> None:
    cap = 200_000  # room for three of six
    children = [
        subprocess.Popen([sys.executable, "-c", HAMMER, str(packs.folder), str(seed), str(cap)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for seed in range(3)
    ]  # fmt: skip
    hits = 0
    for child in children:
        out, err = child.communicate(timeout=120)
        assert (child.returncode, err) == (0, "")
        hits += int(out)
    assert hits > 0
    entries = packs.entries()
    assert 0 < sum(entry.nbytes for entry in entries) <= cap
    assert all(packs.find(entry.key) is not None for entry in entries)
    assert packs.folder is not None
    assert len(list(packs.folder.iterdir())) == len(entries), "no leftovers"


def test_threads_that_ask_at_once_pack_once(packs: PackCache) -> None:
    model, device = open_model(TINY, packs=packs).model, Counting()
    store, recipes = model.weights.store_on(device), recipes_of(model, device)
    barrier = threading.Barrier(4)

    def ask() -> None:
        barrier.wait(10)
        store.fill(recipes)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert device.packed == len(recipes)
    assert len(names(packs)) == 1


def test_what_is_mapped_outlives_its_entry(packs: PackCache) -> None:
    packs.keep(KEYS[0], some())
    found = packs.find(KEYS[0])
    packs.keep(KEYS[0], some(1))
    assert same(packs.find(KEYS[0]), some(1))
    assert len(packs.clear()) == 1
    assert same(found, some())


# Whose weights they are, and where nothing can be kept.


def check_a_folder_of_someone_else(packs: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    packs.keep(KEYS[0], some())
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert packs.find(KEYS[0]) is None
        packs.keep(KEYS[1], some())
        assert f"user {os.getuid()}" in packs.doubt()
        assert start(TINY, packs).weights
    assert names(packs) == KEYS[:1]


def check_a_folder_that_others_may_write_to(packs: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    packs.keep(KEYS[0], some())
    assert packs.folder is not None
    packs.folder.chmod(0o770)
    assert packs.find(KEYS[0]) is None
    packs.keep(KEYS[1], some())
    packs.folder.chmod(0o700)
    assert names(packs) == KEYS[:1]


@pytest.mark.parametrize("check", [check_a_folder_of_someone_else, check_a_folder_that_others_may_write_to])
def test_weights_of_others_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: Callable[[PackCache, pytest.MonkeyPatch], None]
) -> None:
    turns = iter(range(2))
    goes_red(
        monkeypatch, kept, "distrust", lambda info: "",
        lambda: check(PackCache(tmp_path / str(next(turns)) / "packed"), monkeypatch),
    )  # fmt: skip


def test_everything_is_private_whatever_the_umask(packs: PackCache) -> None:
    before = os.umask(0)
    try:
        packs.keep(KEYS[0], some())
    finally:
        os.umask(before)
    assert packs.folder is not None
    paths = (packs.folder.parent, packs.folder, only_file(packs))
    assert [path.stat().st_mode & 0o777 for path in paths] == [0o700, 0o700, 0o600]


def test_a_read_only_home(caplog: pytest.LogCaptureFixture) -> None:
    """In /proc not even root makes folders."""
    packs = PackCache(Path("/proc/ostinato/packed"))
    with caplog.at_level(logging.WARNING, "ostinato"):
        for _ in range(2):
            assert start(TINY, packs).weights
    assert ["not kept" in record.getMessage() for record in caplog.records] == [True]


def test_a_folder_that_can_only_be_read_still_serves(
    packs: PackCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(TINY, packs)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    for call in ("utime", "unlink", "replace"):
        monkeypatch.setattr(os, call, refuse)
    assert start(TINY, packs).mapped


@dataclass
class Disk:
    f_bavail: int
    f_frsize: int = 4096


def check_room_is_left(packs: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    room = 1000 + pack_cache.file_bytes(SIZES) // 4096
    with monkeypatch.context() as patch:
        patch.setattr(pack_cache, "SPARE", 1000 * 4096)
        patch.setattr(os, "statvfs", lambda path: Disk(room - 1))
        packs.keep(KEYS[0], some())
        assert packs.find(KEYS[0]) is None
        patch.setattr(os, "statvfs", lambda path: Disk(room))
        packs.keep(KEYS[0], some())
    assert same(packs.find(KEYS[0]), some())


def test_a_disk_that_is_nearly_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    turns = iter(range(2))
    goes_red(monkeypatch, pack_cache, "room_in", nothing,
             lambda: check_room_is_left(PackCache(tmp_path / str(next(turns))), monkeypatch))  # fmt: skip
    assert caplog.text.count("free") == 1


def test_a_disk_that_fills_up_in_the_middle(packs: PackCache) -> None:
    """The system refuses to write past a size: the entry is absent, not half there."""
    code = (
        "import resource, sys; from pathlib import Path; import numpy as np\n"
        "from ostinato.runtime.pack_cache import PackCache\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (9000, 9000))\n"
        "packs = PackCache(Path(sys.argv[1]))\n"
        "packs.keep('0' * 64, [np.zeros(20_000, np.uint8)])\n"
        "assert packs.find('0' * 64) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(packs.folder)], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert packs.folder is not None
    assert list(packs.folder.iterdir()) == []


# The cap.


def test_the_least_recently_used_go_first(packs: PackCache) -> None:
    assert packs.folder is not None
    packs.max_bytes = 3 * pack_cache.file_bytes(SIZES)
    for index, key in enumerate(KEYS[:3]):
        packs.keep(key, some())
        then = time.time() - 100 + index
        os.utime(packs.folder / packs.file_name(key), (then, then))
    assert packs.find(KEYS[0]) is not None  # and so it is the newest
    packs.keep(KEYS[3], some())
    assert sorted(names(packs)) == [KEYS[0], KEYS[2], KEYS[3]]
    assert sum(entry.nbytes for entry in packs.entries()) == packs.max_bytes


def test_what_is_larger_than_the_cap_is_not_kept(packs: PackCache, caplog: pytest.LogCaptureFixture) -> None:
    packs.max_bytes = pack_cache.file_bytes(SIZES)
    packs.keep(KEYS[0], some())
    packs.keep(KEYS[1], [*some(), np.zeros(1, np.uint8)])
    assert names(packs) == KEYS[:1]
    assert "may have" in caplog.text
