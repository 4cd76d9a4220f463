"""`ostinato models`: list, inspect, rm, pull."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commandline import TINY

from ostinato.hub import ALIASES

Cli = Callable[..., Any]


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    """A model that someone put into the cache."""
    folder = tmp_path / "cache" / "models"
    folder.mkdir(parents=True)
    path = folder / "mine.gguf"
    path.write_bytes(Path(TINY).read_bytes())
    return path


def test_list_of_nothing_names_what_can_be_fetched(cli: Cli) -> None:
    ran = cli("models", "list")
    assert ran.code == 0
    for alias in ALIASES.values():
        assert alias.name in ran.out
        assert f"ostinato models pull {alias.name}" in ran.out


def test_list_for_programs(cli: Cli, cached: Path) -> None:
    rows = {row["name"]: row for row in json.loads(cli("models", "list", "--json").out)}
    assert rows["smollm2"]["cached"] is False
    assert rows["smollm2"]["path"] is None
    assert rows["smollm2"]["source"] is None
    assert rows["mine"] == {
        "name": "mine", "description": "", "licence": None, "size": cached.stat().st_size, "cached": True,
        "source": "unknown", "path": str(cached),
    }  # fmt: skip


def test_list_shows_where_a_cached_model_lies(cli: Cli, cached: Path) -> None:
    assert str(cached) in cli("models", "list").out


def test_list_shows_a_model_in_an_installed_package(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = tmp_path / "site" / ALIASES["smollm2"].member
    inside.parent.mkdir(parents=True)
    inside.write_bytes(Path(TINY).read_bytes())
    monkeypatch.syspath_prepend(tmp_path / "site")
    shown = cli("models", "list").out
    assert f"{inside} (installed package)" in shown
    assert "not fetched" not in shown
    (row,) = json.loads(cli("models", "list", "--json").out)
    assert (row["cached"], row["source"], row["path"]) == (False, "installed package", str(inside))


def test_inspect_says_what_is_in_a_file(cli: Cli) -> None:
    ran = cli("models", "inspect", TINY)
    assert (ran.code, ran.err) == (0, "")
    for text in (
        "llama", "35,232", "F32", "21 tensors", "140,928 bytes", "64", "gpt2 (smollm), 260 tokens",
        "<|im_start|>", "apache-2.0", "unknown",
    ):  # fmt: skip
        assert text in ran.out, text


def test_inspect_for_programs(cli: Cli) -> None:
    report = json.loads(cli("models", "inspect", TINY, "--json").out)
    assert report["architecture"] == "llama"
    assert report["parameters"] == 35232
    assert report["encodings"] == [{"name": "F32", "tensors": 21, "parameters": 35232, "bytes": 140928}]
    assert report["context_length"] == 64
    assert report["tokenizer"]["kind"] == "gpt2"
    assert report["chat_template"].startswith("{% for m in messages %}")
    assert report["licence"] == "apache-2.0"
    assert report["source"] is None


def test_inspect_reads_a_model_without_a_template(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    path.write_bytes(Path(TINY).read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_tXmplate"))
    assert "chat template: none" in cli("models", "inspect", str(path)).out


@pytest.mark.parametrize("command", ["inspect", "pull"])
def test_models_that_are_not_there(cli: Cli, command: str) -> None:
    near = cli("models", command, "smolm2")
    assert (near.code, near.out) == (1, "")
    assert "Did you mean smollm2?" in near.err
    offline = cli("models", command, "smollm2")
    assert (offline.code, offline.out) == (1, "")
    assert "OSTINATO_OFFLINE" in offline.err
    file = cli("models", command, "/nowhere/x.gguf")
    assert file.code == 1
    assert "/nowhere/x.gguf" in file.err


def test_inspect_of_a_file_that_is_no_model(cli: Cli) -> None:
    ran = cli("models", "inspect", __file__)
    assert (ran.code, ran.out) == (1, "")
    assert Path(__file__).name in ran.err
    assert "Traceback" not in ran.err


def test_pull_prints_the_path_alone(cli: Cli) -> None:
    assert cli("models", "pull", TINY).out == f"{TINY}\n"


def test_rm(cli: Cli, cached: Path) -> None:
    ran = cli("models", "rm", "mine")
    assert (ran.code, ran.out) == (0, "")
    assert f"removed {cached}" in ran.err
    assert not cached.exists()
    again = cli("models", "rm", "mine")
    assert again.code == 1
    assert "mine" in again.err


@pytest.mark.parametrize(
    "arguments", [["-q", "models", "rm"], ["models", "-q", "rm"], ["models", "rm", "-q"]]
)
def test_quiet_in_any_place(cli: Cli, cached: Path, arguments: list[str]) -> None:
    ran = cli(*arguments, "mine")
    assert (ran.code, ran.out, ran.err) == (0, "", "")


def test_rm_only_ever_touches_the_cache(cli: Cli, cached: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.gguf"
    outside.write_bytes(b"precious")
    for reference in (str(outside), "../outside"):
        ran = cli("models", "rm", reference)
        assert ran.code == 1, reference
    assert outside.read_bytes() == b"precious"


def test_wrong_usage(cli: Cli) -> None:
    assert cli("models", "inspect").code == 2
    assert cli("models", "nosuch").code == 2
    assert cli("models").code == 2
