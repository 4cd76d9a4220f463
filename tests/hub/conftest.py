"""A cache of the test's own, a package index in a folder, and machines without pip."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from hfstub import Hub
from hubindex import CHILD, SRC, UV, Index

from ostinato.host import dirs
from ostinato.hub.aliases import Alias


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, request) -> Path:
    """A cache of the test's own; the folder of models in it, not yet created.

    Tests of the real model keep the user's cache, which has it.
    """
    if request.node.get_closest_marker("model"):
        return dirs.models_dir(create=False)
    monkeypatch.setenv("OSTINATO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("OSTINATO_OFFLINE", raising=False)
    return tmp_path / "cache" / "models"


@pytest.fixture
def index(tmp_path, monkeypatch) -> Index:
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    return Index(tmp_path / "index", monkeypatch)


@pytest.fixture
def no_process(monkeypatch):
    """From here on, starting a process fails the test."""

    def explode(*args, **kwargs):
        pytest.fail(f"started a process: {args}")

    monkeypatch.setattr(subprocess, "Popen", explode)


@pytest.fixture
def no_pip(tmp_path, monkeypatch) -> None:
    """The interpreter has no pip, and PATH has nothing at all."""
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "no-programs"))


@pytest.fixture
def start():
    """Starts another process that resolves an alias, after running `before` in it."""
    children = []

    def run(alias: Alias, before: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD, json.dumps(dataclasses.asdict(alias)), before]
        environ = {**os.environ, "PYTHONPATH": str(SRC)}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)
        children.append(child)
        return child

    yield run
    for child in children:
        child.kill()
        child.communicate()


@pytest.fixture
def uv(index, tmp_path, monkeypatch, no_pip):
    """Puts a uv on PATH that unpacks the alias's wheel, or fails."""

    def put(alias, *, fails=False):
        log = tmp_path / "uv.log"
        program = tmp_path / "programs" / "uv"
        program.parent.mkdir()
        text = UV.format(
            python=os.path.realpath(sys.executable), log=str(log), fails=fails, wheel=str(index.wheel(alias))
        )
        program.write_text(text)
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        return log

    return put


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hugging Face of the test's own, with an empty cache and nobody's token.

    Its client reads the environment when it is imported, which may have happened: what it made of it is
    patched instead. `test_hf_process.py` goes through the environment.
    """
    from huggingface_hub import constants, file_download

    server = Hub()
    home = tmp_path / "hf"
    for name in list(os.environ):
        if name.startswith(("HF_", "HUGGING")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    values = {
        "ENDPOINT": server.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": server.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_PROGRESS_BARS": None,
        "HF_HUB_ETAG_TIMEOUT": 5,
        "DOWNLOAD_CHUNK_SIZE": 1 << 16,
    }
    for name, value in values.items():
        for module in (constants, file_download):
            # Older clients have fewer of them, and copies of some.
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)
    yield server
    server.close()
