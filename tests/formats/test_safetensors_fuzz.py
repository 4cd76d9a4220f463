"""Mutations of valid checkpoints, field by field: each opens and can be read, or is a typed error."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections import Counter
from itertools import groupby
from pathlib import Path

import pytest
from rewriting import Rewritten
from safetensorsbuilder import INDEX
from safetensorscases import ALONE, FACTOR, SLACK, owned_guards
from safetensorsmutations import BASES, mutate

from ostinato.errors.checkpoint import GgufFolder, IncompleteCheckpoint, MissingShards, PickledWeights
from ostinato.errors.formats import ModelFileMissing, ModelFormatError, UnsupportedEncoding
from ostinato.formats.encodings import codec
from ostinato.formats.safetensors import Checkpoint, Config, guards
from ostinato.formats.safetensors.dtypes import WEIGHT_ENCODINGS

EXPENSIVE = 4 << 20  # far more than any mutation of these small folders may cost, deep nesting included
REFUSALS = (
    ModelFormatError,
    ModelFileMissing,
    IncompleteCheckpoint,
    MissingShards,
    PickledWeights,
    GgufFolder,
)


def examine(path: Path) -> str:
    """Opens the folder and reads all that it offers; returns `opened` or the guard that refused it."""
    try:
        checkpoint = Checkpoint.open(path)
    except REFUSALS as error:
        return refusal(error, path)
    with checkpoint:
        assert checkpoint.tensors.keys() <= {t.name for t in checkpoint.tensors.values()}
        by_file = sorted(checkpoint.tensors.values(), key=lambda t: (str(t.file), t.offset, t.nbytes))
        for file, each in groupby(by_file, key=lambda t: t.file):
            assert file.parent == path
            (length,) = struct.unpack("<Q", file.read_bytes()[:8])
            end = 8 + length
            for tensor in each:
                assert tensor.offset == end
                end += tensor.nbytes
            assert end == file.stat().st_size
        for tensor in checkpoint.tensors.values():
            read(checkpoint, tensor.name)
        for config in (checkpoint.config, checkpoint.generation_config):
            read_settings(config)
    return "opened"


def read(checkpoint: Checkpoint, name: str) -> None:
    tensor = checkpoint.tensors[name]
    if tensor.dtype not in WEIGHT_ENCODINGS:
        with pytest.raises(UnsupportedEncoding):
            checkpoint.data(tensor)
        return
    data = checkpoint.data(tensor)
    assert data.nbytes == tensor.nbytes
    int(data.sum())
    decoded = codec(tensor.encoding, tensor=name, file="").decode(data)
    assert decoded.shape == (tensor.shape or (1,))


GETTERS: dict[str, type] = {
    "text": str,
    "integer": int,
    "number": float,
    "flag": bool,
    "texts": tuple,
    "integers": tuple,
    "numbers": tuple,
    "section": Config,
}


def read_settings(config: Config) -> None:
    """Every getter on every key gives its type or says which field is wrong."""
    for key in config:
        for getter, kind in GETTERS.items():
            try:
                value = getattr(config, getter)(key)
            except ModelFormatError as error:
                describe(error)
                continue
            assert type(value) is kind or (value is None and getter == "section")
            if isinstance(value, Config):
                read_settings(value)


def describe(error: Exception) -> None:
    shown = str(error)
    assert len(shown) < 2_000
    assert shown.isprintable()


def refusal(error: Exception, path: Path) -> str:
    """The guard that raised, after a look at what it says."""
    assert str(error).startswith(str(path))
    describe(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    assert trace is not None
    return trace.tb_frame.f_code.co_name


def fuzz(path: Path, seeds: range) -> Counter[str]:
    """Examines one mutation a seed; the seed of a failure is in the assertion."""
    seen: Counter[str] = Counter()
    folder = Rewritten(path)
    tracemalloc.start()
    try:
        for seed in seeds:
            files = mutate(random.Random(seed))
            folder.put(files)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            try:
                seen[examine(path)] += 1
            except Exception as error:
                raise AssertionError(f"seed {seed}: {error!r}") from error
            cost = tracemalloc.get_traced_memory()[1] - before
            bound = FACTOR * sum(map(len, files.values())) + SLACK
            assert cost <= min(bound, EXPENSIVE), f"seed {seed}: {cost} bytes"
    finally:
        tracemalloc.stop()
    return seen


def expect_variety(seen: Counter[str], count: int) -> None:
    """The mutations reached every guard that a folder's contents can reach, and were not all refused."""
    assert seen.total() == count
    assert seen["opened"] >= count // 20
    assert set(seen) - {"opened", "open_regular"} == owned_guards() - ALONE


def test_3000_mutations(tmp_path: Path) -> None:
    expect_variety(fuzz(tmp_path, range(3_000)), 3_000)


@pytest.mark.slow
def test_100000_mutations(tmp_path: Path) -> None:
    expect_variety(fuzz(tmp_path, range(1_000_000, 1_100_000)), 100_000)


@pytest.mark.parametrize(
    "guard",
    [
        "check_object",
        "check_shape",
        "check_range",
        "check_length",
        "check_disjoint",
        "check_no_holes",
        "refuse_depth",
        "refuse_bytes",
    ],
)
def test_the_fuzzer_notices_a_missing_guard(
    guard: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guards, guard, lambda *_: None)
    with pytest.raises(AssertionError, match="seed"):
        fuzz(tmp_path, range(3_000))


def test_the_bases_are_valid(tmp_path: Path) -> None:
    folder = Rewritten(tmp_path)
    for base in BASES:
        folder.put(base)
        assert examine(tmp_path) == "opened"
    assert INDEX in BASES[1]
