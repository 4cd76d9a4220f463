"""Packed weights on disk: found whole and of the very files at hand, or packed anew."""

from __future__ import annotations

import json
import logging
import mmap
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from devices.frail import FrailCpu
from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.device.encoded import EncodedTensor
from ostinato.device.storage import Storage
from ostinato.devices.reference.device import ReferenceDevice
from ostinato.engine.opened import open_model
from ostinato.errors import WeightLayoutConflict
from ostinato.formats import stamp
from ostinato.formats.gguf import GgufFile
from ostinato.formats.gguf.writer import write_gguf
from ostinato.formats.safetensors import Checkpoint
from ostinato.formats.stamp import FileStamp, Origin
from ostinato.host import kept, version
from ostinato.ir import PackRecipe
from ostinato.ir import encoding as enc
from ostinato.ir.encoding import Encoding
from ostinato.models.contract import Model
from ostinato.runtime import pack_cache
from ostinato.runtime.context import InferenceContext
from ostinato.runtime.pack_cache import PAGE, PackCache
from ostinato.runtime.registry import Registry
from ostinato.runtime.weights import WeightSet, WeightStore
from sabotage import goes_red, nothing
from tinymodels import FIXTURES

KEYS = [f"{index:064x}" for index in range(9)]
TINY = FIXTURES / "tiny-llama-grouped.gguf"
FOLDER = FIXTURES / "tiny-llama-grouped"


@pytest.fixture(autouse=True)
def _a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was said yet; files just written count as settled, and every disk has room."""
    monkeypatch.setattr(PackCache, "unsaid", threading.Lock())
    monkeypatch.setattr(pack_cache, "SPARE", 0)
    monkeypatch.setattr(stamp, "SETTLED_NS", 0)


@pytest.fixture
def packs(tmp_path: Path) -> PackCache:
    return PackCache(tmp_path / "cache" / "packed")


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    return Path(shutil.copy(TINY, tmp_path / "mine.gguf"))


class Counting(FrailCpu):
    """How many weights it packed itself."""

    packed = 0

    def pack(self, recipe: PackRecipe, tensors: Sequence[EncodedTensor]) -> Storage:
        self.packed += 1
        return super().pack(recipe, tensors)


@dataclass
class Start:
    """What a process has after it asked for a model's weights."""

    device: Counting
    store: WeightStore
    weights: dict[PackRecipe, bytes]

    @property
    def mapped(self) -> bool:
        return self.device.packed == 0


def recipes_of(model: Model, device: FrailCpu) -> list[PackRecipe]:
    """Each weight by itself."""
    found = []
    for tensor in model.weights.values():
        layout = device.traits.layout(tensor.encoding, len(tensor.shape))
        assert layout is not None
        found.append(PackRecipe((tensor.name,), layout.name))
    return found


def start(path: Path, packs: PackCache | None, encoding: Encoding | None = None) -> Start:
    return started(open_model(path, encoding, packs=packs).model)


def started(model: Model) -> Start:
    device = Counting()
    store, recipes = model.weights.store_on(device), recipes_of(model, device)
    store.fill(recipes)
    return Start(device, store, {each: device.packed_bytes(store.get(each)).tobytes() for each in recipes})


def logits(model: Model, device: FrailCpu) -> np.ndarray:
    """After three tokens and one more."""
    devices = Registry()
    devices.register(device)
    context = InferenceContext("cpu", devices)
    cache = KvCache.allocate(model, context, 8)
    forward_with_kv_context(model, [1, 2, 3], cache, context)
    return forward_with_kv_context(model, [4], cache, context)


def names(packs: PackCache) -> list[str]:
    return [entry.key for entry in packs.entries()]


def only_file(packs: PackCache) -> Path:
    assert packs.folder is not None
    (key,) = names(packs)
    return packs.folder / packs.file_name(key)


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


# The key: all that packed bytes follow from.

STAMP = FileStamp(1, 2, 3, 4, 5, "head", True)


def described(**changes: Any) -> EncodedTensor:
    return replace(
        EncodedTensor("w", (32, 32), enc.Q8_0, np.zeros((32, 34), np.uint8), origin=Origin(STAMP, 64)),
        **changes,
    )


def key_of(tensor: EncodedTensor, *, packing: str = "cpu 1", **recipe: Any) -> str | None:
    recipes = replace(PackRecipe(("w",), "Q8_0"), **recipe)
    return PackCache(None).key_of(packing, [(recipes, [tensor])])


def other_stamp(**changes: Any) -> str | None:
    return key_of(described(origin=Origin(replace(STAMP, **changes), 64)))


OTHERS: dict[str, Callable[[], str | None]] = {
    "device": lambda: other_stamp(device=9),
    "inode": lambda: other_stamp(inode=9),
    "size": lambda: other_stamp(nbytes=9),
    "mtime": lambda: other_stamp(modified_ns=9),
    "ctime": lambda: other_stamp(changed_ns=9),
    "head": lambda: other_stamp(head="other"),
    "offset": lambda: key_of(described(origin=Origin(STAMP, 65))),
    "name": lambda: key_of(described(name="v")),
    "shape": lambda: key_of(described(shape=(16, 64))),
    "encoding": lambda: key_of(described(encoding=enc.Q4_0)),
    "recoded": lambda: key_of(described(stored=enc.F32)),
    "recoded otherwise": lambda: key_of(described(stored=enc.F16)),
    "bytes": lambda: key_of(described(raw=np.zeros((32, 35), np.uint8))),
    "row order": lambda: key_of(described(row_order=np.arange(32))),
    "another row order": lambda: key_of(described(row_order=np.arange(32)[::-1])),
    "names": lambda: key_of(described(), names=("v",)),
    "form": lambda: key_of(described(), layout="Q4_0"),
    "joined rows": lambda: key_of(described(), permutation="interleave:16"),
    "packing": lambda: key_of(described(), packing="cpu 2"),
    "two files": lambda: PackCache(None).key_of(
        "cpu 1",
        [(PackRecipe(("w",), "Q8_0"), [described(), described(origin=Origin(replace(STAMP, inode=9), 64))])],
    ),
    "twice": lambda: PackCache(None).key_of("cpu 1", [(PackRecipe(("w",), "Q8_0"), [described()] * 2)]),
}


def test_whatever_differs_is_another_key(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {what: other() for what, other in OTHERS.items()} | {"none": key_of(described())}
    monkeypatch.setattr(version, "__version__", "999")
    keys["version"] = key_of(described())
    assert None not in keys.values()
    assert len(set(keys.values())) == len(keys), keys


def test_equal_is_the_same_key() -> None:
    assert key_of(described()) == key_of(described(raw=np.ones((32, 34), np.uint8))), "bytes are not read"
    assert other_stamp(sure=False) is None
    assert key_of(described(origin=None)) is None


def test_another_packing_is_packed_anew(packs: PackCache, monkeypatch: pytest.MonkeyPatch) -> None:
    start(TINY, packs)
    monkeypatch.setattr(Counting, "packing", "cpu 999")
    assert not start(TINY, packs).mapped
    assert len(names(packs)) == 2


def test_what_does_not_fit_is_packed_anew(packs: PackCache, caplog: pytest.LogCaptureFixture) -> None:
    """Of other sizes, or another number: whoever changed packing forgot to say so."""
    first = start(TINY, packs)
    (key,) = names(packs)
    wrong = [np.zeros(len(data) + 64, np.uint8) for data in first.weights.values()]
    for each in (wrong, wrong[1:]):
        packs.keep(key, each)
        second = start(TINY, packs)
        assert not second.mapped
        assert second.weights == first.weights
        assert start(TINY, packs).mapped
    assert "doesn't fit" in caplog.text


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
