"""The cache of compiled code: whole entries or none, the user's alone, never above its cap, for any number of
processes at once."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import logging
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import irs
import pytest

from ostinato.devices.cpu import code_cache, llvm
from ostinato.devices.cpu.code_cache import CodeCache
from ostinato.devices.cpu.isa import ISAS
from ostinato.host import dirs, version
from ostinato.host import kept as kept_files
from sabotage import goes_red, nothing

KEYS = [f"{index:064x}" for index in range(20)]
HEADER = code_cache._HEADER
IR = irs.constant(1)


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said yet."""
    monkeypatch.setattr(CodeCache, "unsaid", threading.Lock())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "code"


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], CodeCache]:
    """Each call is an empty cache in a folder of its own."""
    numbers = itertools.count()
    return lambda: CodeCache(tmp_path / f"cache{next(numbers)}" / "code")


def file_of(cache: CodeCache, key: str) -> Path:
    assert cache.folder is not None
    return cache.folder / f"{key}.code"


def used(cache: CodeCache, key: str, seconds_ago: float) -> None:
    when = time.time() - seconds_ago
    os.utime(file_of(cache, key), (when, when))


def kept(cache: CodeCache) -> list[str]:
    return [entry.key for entry in cache.entries()]


# Keeping and finding.


def test_what_is_put_is_got(folder: Path) -> None:
    cache = CodeCache(folder)
    assert cache.get(KEYS[0]) is None
    assert not folder.exists()
    for key, data in zip(KEYS, [b"", b"code", os.urandom(100_000)], strict=False):
        cache.put(key, data)
        assert CodeCache(folder).get(key) == data
    cache.put(KEYS[1], b"other")
    assert cache.get(KEYS[1]) == b"other"
    assert cache.get(KEYS[9]) is None


def test_without_a_folder_nothing_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    cache = CodeCache(None)
    cache.put(KEYS[0], b"code")
    assert cache.get(KEYS[0]) is None
    assert cache.entries() == cache.clear() == []
    assert cache.doubt() == ""
    assert not caplog.records


def test_the_users_own_is_where_the_environment_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "mine"))
    cache = CodeCache.of_user()
    assert cache.folder == tmp_path / "mine" / "code" == dirs.code_dir(create=False)
    assert not (tmp_path / "mine").exists()
    cache.put(KEYS[0], b"code")
    assert cache.get(KEYS[0]) == b"code"


@pytest.mark.parametrize("key", ["", "x", "../" + "0" * 61, "0" * 63, "0" * 65, "0" * 63 + "G"])
def test_only_keys_are_keys(folder: Path, key: str) -> None:
    cache = CodeCache(folder)
    cache.put(KEYS[0], b"code")
    with pytest.raises(ValueError, match="no key"):
        cache.get(key)
    with pytest.raises(ValueError, match="no key"):
        cache.put(key, b"code")


# Damage.

DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda file: b"",
    "header cut": lambda file: file[: HEADER - 1],
    "header alone": lambda file: file[:HEADER],
    "cut short": lambda file: file[:-1],
    "longer": lambda file: file + b"\0",
    "zeros": lambda file: bytes(len(file)),
    "foreign": lambda file: b"\x7fELF" + file[4:],
    "another version of the format": lambda file: file.replace(b"code 1\n", b"code 2\n"),
    "another key": lambda file: file.replace(KEYS[0].encode(), KEYS[1].encode()),
    "another checksum": lambda file: file.replace(file[HEADER - 65 : HEADER - 1], b"0" * 64),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
def test_a_damaged_entry_is_dropped(folder: Path, damage: str) -> None:
    cache = CodeCache(folder)
    cache.put(KEYS[0], b"machine code")
    path = file_of(cache, KEYS[0])
    whole = path.read_bytes()
    path.write_bytes(DAMAGE[damage](whole))
    assert cache.get(KEYS[0]) is None
    assert not path.exists()
    cache.put(KEYS[0], b"machine code")
    assert path.read_bytes() == whole
    assert cache.get(KEYS[0]) == b"machine code"


def check_every_flipped_bit_is_seen(cache: CodeCache) -> None:
    data = bytes(range(256))
    for index in range(HEADER + len(data)):
        cache.put(KEYS[0], data)
        path = file_of(cache, KEYS[0])
        file = bytearray(path.read_bytes())
        file[index] ^= 1 << (index % 8)
        path.write_bytes(file)
        assert cache.get(KEYS[0]) is None, f"bit {index % 8} of byte {index}"


def test_every_flipped_bit_is_seen(fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", nothing)
    goes_red(
        monkeypatch, code_cache, "unsealed", lambda key, file: file[HEADER:],
        lambda: check_every_flipped_bit_is_seen(fresh()),
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["link", "dangling link", "folder", "pipe"])
def test_an_entry_that_is_no_file_is_no_entry(folder: Path, tmp_path: Path, kind: str) -> None:
    cache = CodeCache(folder)
    cache.put(KEYS[1], b"other")
    path = file_of(cache, KEYS[0])
    elsewhere = tmp_path / "elsewhere"
    if kind == "link":
        elsewhere.write_bytes(code_cache.seal(KEYS[0], b"planted"))
        path.symlink_to(elsewhere)
    elif kind == "dangling link":
        path.symlink_to(elsewhere)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    assert cache.get(KEYS[0]) is None
    assert elsewhere.exists() == (kind == "link")
    cache.put(KEYS[0], b"code")  # a folder stays in the way, and is no accident
    assert cache.get(KEYS[0]) == (None if kind == "folder" else b"code")


# Whose code it is.


def check_a_folder_that_others_may_write_to(cache: CodeCache, mode: int) -> None:
    cache.put(KEYS[0], b"code")
    assert cache.get(KEYS[0]) == b"code"
    assert cache.folder is not None
    cache.folder.chmod(mode)
    assert cache.get(KEYS[0]) is None
    cache.put(KEYS[1], b"code")
    assert "others may write" in cache.doubt()
    cache.folder.chmod(0o700)
    assert kept(cache) == [KEYS[0]]
    assert cache.doubt() == ""
    assert cache.get(KEYS[0]) == b"code"


def check_an_entry_that_others_may_write_to(cache: CodeCache, mode: int) -> None:
    cache.put(KEYS[0], b"code")
    file_of(cache, KEYS[0]).chmod(mode)
    assert cache.get(KEYS[0]) is None
    assert kept(cache) == []


def check_a_folder_of_someone_else(cache: CodeCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.put(KEYS[0], b"code")
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert cache.get(KEYS[0]) is None
        cache.put(KEYS[1], b"code")
        assert f"user {os.getuid()}" in cache.doubt()
    assert kept(cache) == [KEYS[0]]


def trusting(info: os.stat_result) -> str:
    return ""


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write_to(fresh, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    goes_red(monkeypatch, kept_files, "distrust", trusting,
             lambda: check_a_folder_that_others_may_write_to(fresh(), mode))  # fmt: skip


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666])
def test_an_entry_that_others_may_write_to(fresh, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    goes_red(monkeypatch, kept_files, "distrust", trusting,
             lambda: check_an_entry_that_others_may_write_to(fresh(), mode))  # fmt: skip


def test_a_folder_of_someone_else(fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, kept_files, "distrust", trusting,
             lambda: check_a_folder_of_someone_else(fresh(), monkeypatch))  # fmt: skip


@pytest.mark.skipif(os.geteuid() != 0, reason="giving files away takes root")
@pytest.mark.parametrize("what", ["folder", "entry"])
def test_what_was_really_given_away(folder: Path, what: str) -> None:
    cache = CodeCache(folder)
    cache.put(KEYS[0], b"code")
    os.chown(folder if what == "folder" else file_of(cache, KEYS[0]), 12345, -1)
    assert cache.get(KEYS[0]) is None


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_everything_is_private_whatever_the_umask(folder: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        cache = CodeCache(folder)
        cache.put(KEYS[0], b"code")
        assert cache.get(KEYS[0]) == b"code"
    finally:
        os.umask(before)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder)}
    assert modes == {0o700}
    assert stat.S_IMODE(file_of(cache, KEYS[0]).stat().st_mode) == 0o600


def test_readable_by_others_is_no_danger(folder: Path) -> None:
    cache = CodeCache(folder)
    cache.put(KEYS[0], b"code")
    folder.chmod(0o755)
    assert cache.get(KEYS[0]) == b"code"


# Where nothing can be kept.


def test_one_warning_a_process(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    CodeCache(folder).put(KEYS[0], b"code")
    folder.chmod(0o777)
    with caplog.at_level(logging.WARNING, "ostinato"):
        for _ in range(3):
            cache = CodeCache(folder)
            assert cache.get(KEYS[0]) is None
            cache.put(KEYS[0], b"code")
        (record,) = caplog.records
    assert record.name.startswith("ostinato")
    assert str(folder) in record.getMessage()
    assert "others may write" in record.getMessage()


def test_a_read_only_home(caplog: pytest.LogCaptureFixture) -> None:
    """In /proc not even root makes folders."""
    cache = CodeCache(Path("/proc/ostinato/code"))
    with caplog.at_level(logging.WARNING, "ostinato"):
        cache.put(KEYS[0], b"code")
    assert cache.get(KEYS[0]) is None
    assert len(caplog.records) == 1


def test_a_file_where_the_folder_should_be(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.parent.mkdir()
    folder.write_text("mine")
    cache = CodeCache(folder)
    with caplog.at_level(logging.WARNING, "ostinato"):
        cache.put(KEYS[0], b"code")
        assert cache.get(KEYS[0]) is None
    assert folder.read_text() == "mine"
    assert len(caplog.records) == 1
    assert cache.doubt() == "it is no folder"
    with pytest.raises(NotADirectoryError):
        cache.clear()


def test_a_folder_that_can_only_be_read_still_serves(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    CodeCache(folder).put(KEYS[0], b"code")
    folder.chmod(0o500)

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    for call in ("utime", "unlink", "replace"):
        monkeypatch.setattr(os, call, refuse)
    cache = CodeCache(folder)
    assert cache.get(KEYS[0]) == b"code"
    with caplog.at_level(logging.WARNING, "ostinato"):
        cache.put(KEYS[1], b"code")
    assert cache.get(KEYS[1]) is None
    assert len(caplog.records) == 1
    monkeypatch.undo()
    folder.chmod(0o700)


def test_a_disk_that_fills_up_in_the_middle(folder: Path) -> None:
    """The system refuses to write past a size: the entry is absent, not half there, and compiling works."""
    code = (
        "import resource, sys; from pathlib import Path; from ostinato.devices.cpu import compiler, isa\n"
        "from ostinato.devices.cpu.code_cache import CodeCache\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300))\n"
        "cache = CodeCache(Path(sys.argv[1]))\n"
        "module = compiler.compile_module(sys.argv[2], isa.select('generic'), cache)\n"
        "assert module.address('answer') and module.nbytes > 300\n"
        "assert cache.get(module.key) is None\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(folder), IR], capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert list(folder.iterdir()) == []


# The cap.


def test_the_least_recently_used_go_first(folder: Path) -> None:
    size = HEADER + 1000
    cache = CodeCache(folder, max_bytes=4 * size)
    for index, key in enumerate(KEYS[:4]):
        cache.put(key, bytes(1000))
        used(cache, key, 100 - index)
    assert kept(cache) == KEYS[:4]
    assert cache.get(KEYS[0]) == bytes(1000)  # and so it is the newest
    assert kept(cache) == [*KEYS[1:4], KEYS[0]]
    cache.put(KEYS[4], bytes(1000))
    assert kept(cache) == [KEYS[2], KEYS[3], KEYS[0], KEYS[4]]
    cache.put(KEYS[5], bytes(2000))
    assert kept(cache) == [KEYS[0], KEYS[4], KEYS[5]]


def test_the_cap_counts_bytes(folder: Path) -> None:
    cache = CodeCache(folder, max_bytes=3 * HEADER + 1000)
    for index, size in enumerate([500, 400, 100]):
        cache.put(KEYS[index], bytes(size))
        used(cache, KEYS[index], 100 - index)
    assert sum(entry.nbytes for entry in cache.entries()) == cache.max_bytes
    cache.put(KEYS[1], bytes(401))  # one byte more: the oldest goes
    assert sorted(kept(cache)) == KEYS[1:3]


def test_what_is_larger_than_the_cap_is_not_kept(folder: Path) -> None:
    cache = CodeCache(folder, max_bytes=HEADER + 100)
    cache.put(KEYS[0], bytes(100))
    cache.put(KEYS[1], bytes(101))
    assert kept(cache) == [KEYS[0]]


def check_the_cap_holds(cache: CodeCache) -> None:
    cache.max_bytes = 2 * HEADER
    for key in KEYS[:5]:
        cache.put(key, b"")
    assert sum(entry.nbytes for entry in cache.entries()) <= cache.max_bytes


def test_the_cap_holds(fresh, monkeypatch: pytest.MonkeyPatch) -> None:
    goes_red(monkeypatch, CodeCache, "_evict", nothing, lambda: check_the_cap_holds(fresh()))


def test_what_killed_writers_left_goes_when_it_is_old(folder: Path) -> None:
    cache = CodeCache(folder)
    cache.put(KEYS[0], b"code")
    old, young = (folder / f".{KEYS[1]}.code.{tail}.partial" for tail in ("aa", "bb"))
    for path in (old, young):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.put(KEYS[2], b"code")
    assert not old.exists()
    assert young.exists()


def test_clear_takes_only_what_is_its_own(folder: Path) -> None:
    cache = CodeCache(folder)
    for key in KEYS[:3]:
        cache.put(key, b"code")
    leftover = folder / f".{KEYS[4]}.code.0123abcd.partial"
    strangers = [
        folder / "notes.txt",
        folder / "x.code",
        folder / f"{KEYS[5]}.code.bak",
        folder / ".hidden.partial",
    ]
    for path in (leftover, *strangers):
        path.write_bytes(b"x")
    link = file_of(cache, KEYS[6])
    link.symlink_to(strangers[0])
    removed = cache.clear()
    assert sorted(entry.key for entry in removed) == KEYS[:3]
    assert sum(entry.nbytes for entry in removed) == 3 * (HEADER + 4)
    assert set(folder.iterdir()) == {*strangers, link}
    assert cache.clear() == []


# Several processes at once.

HAMMER = """
import random, sys
from pathlib import Path
from ostinato.devices.cpu.code_cache import CodeCache

folder, seed, rounds, cap = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
dice, hits = random.Random(seed), 0
cache = CodeCache(folder, max_bytes=cap)
print("ready", flush=True)
for _ in range(rounds):
    number = dice.randrange(12)
    key, data = f"{number:064x}", random.Random(number).randbytes(500 + 300 * number)
    if dice.random() < 0.5:
        cache.put(key, data)
    else:
        got = cache.get(key)
        assert got is None or got == data, f"{key}: wrong contents"
        hits += got is not None
print(hits)
"""


def hammering(folder: Path, seed: int, rounds: int, cap: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HAMMER, str(folder), str(seed), str(rounds), str(cap)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def intact(cache: CodeCache) -> int:
    """How many entries there are; each is whole."""
    entries = cache.entries()
    for entry in entries:
        number = int(entry.key, 16)
        assert cache.get(entry.key) == random.Random(number).randbytes(500 + 300 * number)
    return len(entries)


def test_processes_that_write_and_evict_at_once(folder: Path) -> None:
    cap = 8000  # room for three or four of twelve
    children = [hammering(folder, seed, 150, cap) for seed in range(4)]
    hits = 0
    for child in children:
        out, err = child.communicate(timeout=120)
        assert (child.returncode, err) == (0, "")
        hits += int(out.split()[-1])
    assert hits > 0
    cache = CodeCache(folder, max_bytes=cap)
    assert intact(cache) > 0
    assert sum(entry.nbytes for entry in cache.entries()) <= cap
    assert all(cache._name.fullmatch(path.name) for path in folder.iterdir())


def test_processes_that_are_killed(folder: Path) -> None:
    cache = CodeCache(folder, max_bytes=8000)
    for seed in range(4):
        with hammering(folder, seed, 1_000_000, 8000) as child:
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(0.1 + 0.03 * seed)
            child.send_signal(signal.SIGKILL)
        intact(cache)
    cache.put(KEYS[15], b"code")
    assert cache.get(KEYS[15]) == b"code"
    assert sum(entry.nbytes for entry in cache.entries()) <= 8000


# The key.


def test_the_key_is_the_same_in_every_process() -> None:
    code = (
        "import sys; from ostinato.devices.cpu.code_cache import CodeCache\n"
        "from ostinato.devices.cpu.isa import ISAS; print(CodeCache.key_of([sys.argv[1]], ISAS['generic']))"
    )
    done = subprocess.run([sys.executable, "-c", code, IR], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == CodeCache.key_of([IR], ISAS["generic"])


CHANGES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "ostinato": lambda patch: patch.setattr(version, "__version__", "999"),
    "llvmlite": lambda patch: patch.setattr(llvm, "versions", lambda: ("999", VERSIONS[1])),
    "LLVM": lambda patch: patch.setattr(llvm, "versions", lambda: (VERSIONS[0], "999")),
    "triple": lambda patch: patch.setattr(llvm, "triple", lambda: "m68k-unknown-amiga"),
    "codegen": lambda patch: patch.setattr(code_cache, "CODEGEN", "999"),
}
VERSIONS = llvm.versions()


def check_a_change_is_in_the_key(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    before = CodeCache.key_of([IR], ISAS["avx2"])
    with monkeypatch.context() as patch:
        CHANGES[what](patch)
        assert CodeCache.key_of([IR], ISAS["avx2"]) != before
    assert CodeCache.key_of([IR], ISAS["avx2"]) == before


@pytest.mark.parametrize("what", list(CHANGES))
def test_a_change_is_in_the_key(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    goes_red(monkeypatch, code_cache, "identity", lambda isa: (isa.name, isa.cpu, isa.features),
             lambda: check_a_change_is_in_the_key(monkeypatch, what))  # fmt: skip


@pytest.mark.parametrize("field", ["name", "cpu", "features"])
def test_the_instruction_set_is_in_the_key(field: str) -> None:
    other = dataclasses.replace(ISAS["avx2"], **{field: "other"})
    assert CodeCache.key_of([IR], other) != CodeCache.key_of([IR], ISAS["avx2"])


def test_the_code_is_in_the_key() -> None:
    keys = {CodeCache.key_of([ir], one) for ir in (IR, IR + " ", "") for one in ISAS.values()}
    assert len(keys) == 3 * len(ISAS)
    assert all(CodeCache(None).file_name(key) == f"{key}.code" for key in keys)
