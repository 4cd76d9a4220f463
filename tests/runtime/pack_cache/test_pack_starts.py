"""A second start finds packed weights whole and of the very files at hand, or packs anew."""

from __future__ import annotations

import json
import logging
import mmap
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packkit import FOLDER, TINY, Counting, logits, names, recipes_of, start, started

from ostinato.devices.reference.device import ReferenceDevice
from ostinato.engine.opened import open_model
from ostinato.errors import WeightLayoutConflict
from ostinato.formats import stamp
from ostinato.formats.gguf import GgufFile
from ostinato.formats.gguf.writer import write_gguf
from ostinato.formats.safetensors import Checkpoint
from ostinato.formats.stamp import FileStamp
from ostinato.ir import PackRecipe
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding
from ostinato.runtime.pack_cache import PAGE, PackCache
from ostinato.runtime.weights import WeightSet
from sabotage import goes_red

# A second start.


def split_file(folder: Path) -> Path:
    """The tiny model in three parts."""
    with GgufFile.open(TINY) as file:
        tensors = list(file.tensors.values())
        cuts = [tensors[:4], tensors[4:9], tensors[9:]]
        for index, part in enumerate(cuts):
            numbers = {"split.no": index, "split.count": 3, "split.tensors.count": len(tensors)}
            write_gguf(
                folder / f"m-0000{index + 1}-of-00003.gguf",
                {**(file.metadata.typed() if index == 0 else {}), **numbers},
                [(t.name, t.shape, t.encoding, file.data(t)) for t in part],
            )
    return folder / "m-00001-of-00003.gguf"


def sharded_folder(folder: Path) -> Path:
    """The tiny model in two safetensors files and an index."""
    made = folder / "sharded"
    shutil.copytree(FOLDER, made)
    with Checkpoint.open(FOLDER) as checkpoint:
        tensors = list(checkpoint.tensors.values())
        shards = {"a.safetensors": tensors[::2], "b.safetensors": tensors[1::2]}
        for name, part in shards.items():
            header: dict[str, Any] = {}
            body = b""
            for each in part:
                data = checkpoint.data(each).tobytes()
                span = [len(body), len(body) + len(data)]
                header[each.name] = {"dtype": each.dtype, "shape": list(each.shape), "data_offsets": span}
                body += data
            head = json.dumps(header).encode()
            (made / name).write_bytes(len(head).to_bytes(8, "little") + head + body)
    (made / "model.safetensors").unlink()
    index = {"weight_map": {each.name: name for name, part in shards.items() for each in part}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    return made


MODELS: dict[str, Callable[[Path], Path]] = {
    "gguf": lambda folder: TINY,
    "split gguf": split_file,
    "safetensors": lambda folder: FOLDER,
    "sharded safetensors": sharded_folder,
}


@pytest.mark.parametrize("encoding", [None, enc.Q8_0], ids=str)
@pytest.mark.parametrize("kind", MODELS)
def test_a_second_start_packs_nothing(
    packs: PackCache, tmp_path: Path, kind: str, encoding: Encoding | None
) -> None:
    path = MODELS[kind](tmp_path)
    without, first, second = (start(path, each, encoding) for each in (None, packs, packs))
    assert [each.device.packed for each in (without, first, second)] == [len(first.weights)] * 2 + [0]
    assert without.weights == first.weights == second.weights
    assert len(names(packs)) == 1


def test_logits_are_the_same_bits(packs: PackCache) -> None:
    device, seen = Counting(), []
    for each in (None, packs, packs):
        device = Counting()
        seen.append(logits(open_model(TINY, packs=each).model, device))
    assert device.packed == 0
    assert np.ptp(seen[0]) > 0
    assert seen[0].tobytes() == seen[1].tobytes() == seen[2].tobytes()
    assert len(names(packs)) == 1, "the plans of a prompt and of a token share it"


def test_what_was_kept_is_mapped_and_read_only(packs: PackCache) -> None:
    start(TINY, packs)
    second = start(TINY, packs)
    for recipe in second.weights:
        data = second.device.packed_bytes(second.store.get(recipe))
        assert not data.flags.writeable
        assert data.ctypes.data % PAGE == 0
        base: Any = data
        while isinstance(base, np.ndarray):
            base = base.base
        assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)


def test_the_model_s_own_bytes_are_not_read(packs: PackCache) -> None:
    first = start(TINY, packs)
    model = open_model(TINY, packs=packs).model
    hidden = {
        name: replace(tensor, raw=np.full_like(tensor.raw, 0xA5)) for name, tensor in model.weights.items()
    }
    assert started(replace(model, weights=WeightSet(hidden, packs))).weights == first.weights


def test_order_of_asking_does_not_matter(packs: PackCache) -> None:
    first = start(TINY, packs)
    device = Counting()
    store = open_model(TINY, packs=packs).model.weights.store_on(device)
    store.fill(list(first.weights)[::-1])
    store.fill([])
    store.fill(list(first.weights))
    assert device.packed == 0
    assert len(names(packs)) == 1


def test_a_part_of_the_weights_is_another_entry(packs: PackCache) -> None:
    first = start(TINY, packs)
    recipes = list(first.weights)
    for _ in range(2):
        device = Counting()
        store = open_model(TINY, packs=packs).model.weights.store_on(device)
        store.fill(recipes[:3])
        store.fill(recipes)
        for recipe, data in first.weights.items():
            assert device.packed_bytes(store.get(recipe)).tobytes() == data
    assert device.packed == 0
    assert len(names(packs)) == 3


def test_one_tensor_in_two_layouts_is_a_conflict_of_kept_weights_too(packs: PackCache) -> None:
    for _ in range(2):
        model = open_model(TINY, packs=packs).model
        device = Counting()
        store = model.weights.store_on(device)
        recipes = recipes_of(model, device)
        store.fill(recipes)
        with pytest.raises(WeightLayoutConflict):
            store.fill([PackRecipe((*recipes[0].names, *recipes[1].names), recipes[0].layout)])


def test_a_device_that_can_not_map_packs(packs: PackCache) -> None:
    device = ReferenceDevice()
    store = open_model(TINY, packs=packs).model.weights.store_on(device)
    name = next(iter(open_model(TINY).model.weights))
    store.fill([PackRecipe((name,), "dense")])
    assert store.nbytes == 0
    assert store.get(PackRecipe((name,), "dense")).nbytes == store.nbytes > 0
    assert packs.entries() == []


def test_tensors_of_no_file_are_packed_each_time(packs: PackCache) -> None:
    model = open_model(TINY, packs=packs).model
    some = {name: replace(tensor, origin=None) for name, tensor in model.weights.items()}
    for _ in range(2):
        assert not started(replace(model, weights=WeightSet(some, packs))).mapped
    assert packs.entries() == []


# Other contents.


def change(path: Path) -> None:
    """Other weights, in place; then all that a program can put back is put back."""
    info = path.stat()
    with path.open("r+b") as file:
        file.seek(info.st_size // 2)
        byte = file.read(1)
        file.seek(info.st_size // 2)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
    assert (path.stat().st_ino, path.stat().st_size) == (info.st_ino, info.st_size)
    assert path.stat().st_mtime_ns == info.st_mtime_ns


def swap(path: Path) -> None:
    """Another file under the same name."""
    info, other = path.stat(), path.with_suffix(".other")
    shutil.copy(path, other)
    change(other)
    os.utime(other, ns=(info.st_atime_ns, info.st_mtime_ns))
    other.replace(path)


def check_a_changed_file_is_packed_anew(
    model_file: Path, packs: PackCache, how: Callable[[Path], None]
) -> None:
    before = start(model_file, packs)
    time.sleep(0.02)  # the clock of a file system has ticks
    how(model_file)
    after, truth = start(model_file, packs), start(model_file, None)
    assert truth.weights != before.weights
    assert after.weights == truth.weights
    assert not after.mapped
    assert start(model_file, packs).mapped


@pytest.mark.parametrize("how", [change, swap])
def test_a_changed_file_is_packed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: Callable[[Path], None]
) -> None:
    """Blind to the file's state, a start maps the old weights."""
    turns = iter(range(2))

    def check() -> None:
        folder = tmp_path / f"turn {next(turns)}"
        folder.mkdir()
        path = Path(shutil.copy(TINY, folder))
        check_a_changed_file_is_packed_anew(path, PackCache(folder / "packed"), how)

    made = FileStamp.of
    goes_red(
        monkeypatch, FileStamp, "of",
        lambda info, now, head: replace(made(info, now, head), inode=0, modified_ns=0, changed_ns=1),
        check,
    )  # fmt: skip


def test_a_file_that_was_only_touched_is_packed_anew(model_file: Path, packs: PackCache) -> None:
    """Nothing tells it from one that was changed and set back."""
    first = start(model_file, packs)
    time.sleep(0.02)
    info = model_file.stat()
    os.utime(model_file, ns=(info.st_atime_ns, info.st_mtime_ns))
    second = start(model_file, packs)
    assert not second.mapped
    assert second.weights == first.weights


def test_a_part_that_changed_is_seen(packs: PackCache, tmp_path: Path) -> None:
    path = split_file(tmp_path)
    start(path, packs)
    time.sleep(0.02)
    change(tmp_path / "m-00003-of-00003.gguf")
    second = start(path, packs)
    assert not second.mapped
    assert second.weights == start(path, None).weights


def check_what_has_just_changed(model_file: Path, packs: PackCache, caplog: pytest.LogCaptureFixture) -> None:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "ostinato"):
        for _ in range(2):
            assert not start(model_file, packs).mapped
    assert packs.entries() == []
    assert ["only just changed" in record.getMessage() for record in caplog.records] == [True]


def test_what_has_just_changed_is_not_believed(
    model_file: Path, packs: PackCache, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(stamp, "SETTLED_NS", 60_000_000_000)
    goes_red(
        monkeypatch, stamp, "is_sure", lambda changed, now: True,
        lambda: check_what_has_just_changed(model_file, packs, caplog),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "now", "sure"),
    [
        (5_000_000_001, 7_000_000_001, True),
        (5_000_000_001, 7_000_000_000, False),
        (5_000_000_001, 4_000_000_000, False),  # a clock that was set back
        (5_000_000_000, 9_000_000_000, False),  # whole seconds
        (0, 9_000_000_000, False),
    ],
)
def test_when_a_stamp_is_sure(changed: int, now: int, sure: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamp, "SETTLED_NS", 2_000_000_000)
    assert stamp.is_sure(changed, now) is sure
