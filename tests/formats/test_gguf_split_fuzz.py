"""Mutations of split models: files dropped, exchanged and broken by field; a model or a typed error each."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest
from ggufbuilder import ARRAY, I32, STRING, U64, Entry, Layout, Pair, build, split_model, split_pairs
from rewriting import Rewritten
from test_gguf_fuzz import EXPENSIVE, mutate, raiser

from ostinato.errors.formats import ModelFormatError, ModelPartMissing
from ostinato.formats.gguf import GgufFile, split

A, B, C, D = (Entry(name, (8,), 0, 32) for name in (b"a", b"b", b"c", b"d"))
NAME = Pair(b"general.name", STRING, b"tiny")
TEXTS = Pair(b"t", ARRAY, [b"one", b"two"], STRING)
SETS = (
    split_model((A, B), (C,), (D,), pairs=(NAME, TEXTS)),
    split_model((), (A, B), (C, D), pairs=(NAME,)),
    # The same names, so that a part may come from another model; and parts that repeat some metadata.
    {
        f"m-{i + 1:05}-of-00003.gguf": build(
            (NAME, TEXTS, *split_pairs(i, 3, 3)), (Entry(b"w%d" % i, (4,), 0, 16),)
        )
        for i in range(3)
    },
)
PARTS = tuple(layout for files in SETS for layout in files.values())
# Versions, and other widths of the numbers, that no single field's change gives.
ODD = (
    build(split_pairs(1, 3, 4), (C,), version=2),
    build(
        (Pair(b"split.no", U64, 1), Pair(b"split.count", U64, 3), Pair(b"split.tensors.count", U64, 4)), (C,)
    ),
    build((Pair(b"split.count", I32, -3), Pair(b"split.no", I32, -1), NAME)),
)


def mutate_set(rng: random.Random) -> dict[str, bytes]:
    """A valid set of parts with one or two of its files changed."""
    files = {name: bytes(layout.data) for name, layout in rng.choice(SETS).items()}
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice(list(files))
        match rng.randrange(8):
            case 0:
                del files[name]
                if not files:
                    return {name: b""}
            case 1:
                files[name] = bytes(rng.choice((*PARTS, *ODD)).data)
            case 2:
                other = rng.choice(list(files))
                files[name], files[other] = files[other], files[name]
            case 3:
                files[rng.choice(["m.gguf", "m-00001-of-00002.gguf", "m-00000-of-00003.gguf"])] = files[name]
            case 4 | 5:
                layout = rng.choice([each for each in PARTS if bytes(each.data) == files[name]] or PARTS)
                files[name] = renumbered(rng, layout)
            case _:
                files[name] = mutate(rng, PARTS)
    return files


def renumbered(rng: random.Random, layout: Layout) -> bytes:
    """One of the split's numbers is another."""
    values = [name for name in layout.spans if name.endswith(".value") and layout.spans[name].number]
    return bytes(layout.patched(rng.choice(values), rng.choice([*range(6), 0xFFFF])).data)


def examine(path: Path, names: set[str]) -> str:
    """Opens the model and reads all of it; returns `opened` or the function that refused it."""
    try:
        file = GgufFile.open(path)
    except (ModelPartMissing, ModelFormatError) as error:
        return refusal(error, names)
    with file:
        assert file.path == path
        assert {part.name for part in file.parts} <= names
        assert len(file.parts) == max(1, file.metadata.integer("split.count", 1))
        assert file.nbytes == sum(part.stat().st_size for part in file.parts)
        for tensor in file.tensors.values():
            assert tensor.offset + tensor.nbytes <= file.parts[tensor.part].stat().st_size
            assert file.data(tensor).nbytes == tensor.nbytes
            int(file.data(tensor).sum())
    return "opened"


def refusal(error: ModelPartMissing | ModelFormatError, names: set[str]) -> str:
    """The function that raised, after a look at what the error says."""
    assert str(error).startswith(error.file)
    assert (Path(error.file).name in names) == isinstance(error, ModelFormatError)
    assert error.remedy
    return raiser(error)


def fuzz(folder: Path, seeds: range) -> Counter[str]:
    """Examines one mutated set a seed; the seed of a failure is in the assertion."""
    seen: Counter[str] = Counter()
    rewritten = Rewritten(folder)
    tracemalloc.start()
    try:
        for seed in seeds:
            rng = random.Random(seed)
            files = mutate_set(rng)
            rewritten.put(files)
            # Mostly the first, sometimes one that should not be named.
            name = (
                rng.choice(list(files))
                if rng.random() < 0.2
                else min(files, key=lambda n: "00001-of" not in n)
            )
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                seen[examine(folder / name, set(files))] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error!r}") from error
            assert tracemalloc.get_traced_memory()[1] - before <= EXPENSIVE, f"seed {seed}"
    finally:
        tracemalloc.stop()
    return seen


def expect_variety(seen: Counter[str], count: int) -> None:
    """The mutations reached every guard of the split, and were not all refused."""
    assert seen.total() == count
    assert seen["opened"] >= count // 20
    named = {name for name in vars(split) if name.startswith("check_")} - {"check_name", "check_part"}
    assert named <= set(seen)


def test_2000_mutated_sets(tmp_path: Path) -> None:
    expect_variety(fuzz(tmp_path, range(2_000)), 2_000)


@pytest.mark.slow
def test_50000_mutated_sets(tmp_path: Path) -> None:
    expect_variety(fuzz(tmp_path, range(1_000_000, 1_050_000)), 50_000)


@pytest.mark.parametrize("guard", ["check_whole", "check_present"])
def test_the_fuzzer_notices_a_missing_guard(
    guard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(split, guard, lambda *_: None)
    with pytest.raises(AssertionError, match="seed"):
        fuzz(tmp_path, range(2_000))


def test_the_sets_are_valid(tmp_path: Path) -> None:
    for index, files in enumerate(SETS):
        folder = tmp_path / str(index)
        folder.mkdir()
        for name, layout in files.items():
            (folder / name).write_bytes(layout.data)
        assert examine(folder / "m-00001-of-00003.gguf", set(files)) == "opened"
