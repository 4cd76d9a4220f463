"""Each way a checkpoint can be wrong, and a sabotage of each guard."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import pytest
from rewriting import cut_everywhere
from safetensorsbuilder import (
    INDEX,
    SINGLE,
    sharded,
    small,
    write,
)
from safetensorscases import (
    ALONE,
    FACTOR,
    FIRST,
    SECOND,
    SLACK,
    Case,
    expect_refusal,
    outcome,
    owned_guards,
    peak_of,
)
from safetensorsfoldercases import folder_cases, index_cases, json_cases
from safetensorsheadercases import header_cases

from ostinato.errors.formats import ModelFormatError
from ostinato.formats.safetensors import folder, guards

CASES = [
    *json_cases("config.json", "config.json"),
    *json_cases("generation_config.json", "generation_config.json"),
    *json_cases(INDEX, "index"),
    *header_cases(),
    *index_cases(),
    *folder_cases(),
]
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def owner(guard: str) -> ModuleType:
    return guards if hasattr(guards, guard) else folder


@each_case
def test_a_broken_folder_is_refused_where_it_is_broken(case: Case, tmp_path: Path) -> None:
    expect_refusal(case, tmp_path / "m")


@each_case
def test_without_its_guard_the_refusal_is_missed(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner(case.guard), case.guard, lambda *_: None)
    with pytest.raises(AssertionError):
        expect_refusal(case, tmp_path / "m")


def test_every_guard_has_a_case() -> None:
    assert owned_guards() == {case.guard for case in CASES} | ALONE


@each_case
def test_a_broken_folder_costs_memory_in_proportion(case: Case, tmp_path: Path) -> None:
    write(tmp_path, case.files)
    size = sum(map(len, case.files.values()))
    assert peak_of(lambda: outcome(tmp_path)) <= FACTOR * size + SLACK


@pytest.mark.parametrize("name", ["config.json", "generation_config.json", SINGLE])
def test_truncated_anywhere(name: str, tmp_path: Path) -> None:
    files = small()
    write(tmp_path, files)
    for end in cut_everywhere(tmp_path / name, files[name]):
        error = outcome(tmp_path)
        assert isinstance(error, ModelFormatError), end
        assert error.file == str(tmp_path / name)


@pytest.mark.parametrize("name", [INDEX, FIRST, SECOND])
def test_truncated_shards_and_index(name: str, tmp_path: Path) -> None:
    files = sharded()
    write(tmp_path, files)
    for end in cut_everywhere(tmp_path / name, files[name]):
        error = outcome(tmp_path)
        assert isinstance(error, ModelFormatError), end
        assert error.file == str(tmp_path / name)


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
@pytest.mark.parametrize(
    "name", ["not in the index", "in the wrong shard", "header length in a shard", "a hole behind"]
)
def test_a_refused_folder_leaves_nothing_open(name: str, tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name.endswith(name))
    write(tmp_path, case.files)
    before = len(os.listdir("/proc/self/fd"))
    error = outcome(tmp_path)
    assert isinstance(error, ModelFormatError)
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    assert len(os.listdir("/proc/self/fd")) == before
