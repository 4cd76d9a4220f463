"""Hugging Face as a user has it: its settings in the environment, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

from hfstub import TOKEN
from hubindex import SRC

CODE = """
import sys
from ostinato.errors.base import OstinatoError
from ostinato.hub import resolve
try:
    found = resolve(sys.argv[1])
    print(found.source, found.path)
except OstinatoError as error:
    print(type(error).__name__, error)
"""


def child(reference: str, **environ: str) -> tuple[str, str]:
    """What the process says on standard output and on standard error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "OSTINATO_"))}
    done = subprocess.run(
        [sys.executable, "-c", CODE, reference],
        env={**kept, "PYTHONPATH": str(SRC), "no_proxy": "*", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.strip(), done.stderr


def test_the_environment_is_the_clients(hub, tmp_path):
    hub.publish("org/name", {"a.gguf": b"GGUF"}, needs="private")
    home = tmp_path / "other"
    environ = {"HF_ENDPOINT": hub.endpoint, "HF_HOME": str(home)}
    assert child("hf:org/name", **environ) == (
        "HubAccessDenied the repository org/name is private or does not exist",
        "",
    )
    out, err = child("hf:org/name", **environ, HF_TOKEN=TOKEN)
    assert out.startswith(f"hugging face {home}/hub/models--org--name/snapshots/")
    assert err == ""
    asked = len(hub.seen)
    for offline in ("HF_HUB_OFFLINE", "OSTINATO_OFFLINE"):
        out, err = child("hf:org/name", **environ, **{offline: "1"})
        assert out.startswith("hugging face cache")
        assert err == ""
    assert len(hub.seen) == asked


def test_others_do_not_import_the_client(tmp_path):
    code = (
        "import sys\nfrom ostinato.hub import resolve\nresolve(sys.argv[1])\n"
        "print([name for name in ('huggingface_hub', 'ostinato.hub.hf') if name in sys.modules])"
    )
    (tmp_path / "a.gguf").write_bytes(b"")
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.gguf")],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
