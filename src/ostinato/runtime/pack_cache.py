"""Packed weights on disk, so that a second start maps what the first one packed.

An entry is all weights that a plan asked for at once: a header, a page of padding at most, then each weight's
bytes from the start of a page.

    "ostinato pack 1\n" · key · "\n" · SHA-256 of what follows, up to the padding · "\n"
    · u64 count · count × u64 size · SHA-256 of the sums of all pages that follow the padding

**The key** is the SHA-256 of everything that the bytes follow from: ostinato's version, the device's
`packing`, every recipe (names, form, row order), and of every tensor its shape, encodings, row order and
where its bytes lie, down to the stamps of the model's files (`formats.stamp` says what is trusted there). No
byte of the tensors is read for it. Where a stamp isn't sure, nothing is kept or found.

**Verified when an entry is opened** are its owner, header, size, and the sum of each page, at the speed of
memory: the pages are about to be read anyway. That finds what was cut short, lost or altered, by a disk or by
hand; it is no defence against someone who can write to the folder, whom `host.kept` keeps out. An entry is
whole or absent: it is flushed to the disk before it gets its name.

A mapping is read-only and shared: processes of one model read the same memory, in huge pages where the file
system has such (decoding is slower without). A mapped entry that is replaced or let go stays as it is until
its last reader has gone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ostinato.device.contract import HostArray
from ostinato.device.encoded import EncodedTensor
from ostinato.formats.stamp import FileStamp
from ostinato.host import dirs, version
from ostinato.host.kept import KeptFiles
from ostinato.ir.encoding import Encoding
from ostinato.ir.recipe import PackRecipe

MAX_BYTES = 32 << 30
SPARE = 1 << 30
"""Bytes of the disk that are left to others."""
PAGE = 4096
CHUNK = 8 << 20
"""Bytes written at once: some of the largest pages that a file system keeps in memory."""

_MAGIC = b"ostinato pack 1\n"
_FIXED = len(_MAGIC) + 64 + 1 + 64 + 1
_WORD = np.dtype("<u8")
_DIGEST = 32

Weights = Sequence[tuple[PackRecipe, Sequence[EncodedTensor]]]


class PackCache(KeptFiles):
    """The packed weights in `folder`, at most `max_bytes` of them."""

    what = "packed weights"
    suffix = ".pack"
    unsaid = threading.Lock()

    def __init__(self, folder: Path | None, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(folder, max_bytes)

    @classmethod
    def of_user(cls) -> PackCache:
        """The user's own, in `packed` inside the cache folder; nothing is created before the first `keep`."""
        return cls(dirs.packed_dir(create=False))

    def key_of(self, packing: str, weights: Weights) -> str | None:
        """The key of these weights on a device of this `packing`; None where nothing tells their contents."""
        origins = [tensor.origin for _, tensors in weights for tensor in tensors]
        stamps: dict[FileStamp, int] = {}
        for origin in origins:
            if origin is None:
                return None
            if not origin.file.sure:
                self._warn("the model's files have only just changed, or their file system doesn't say when")
                return None
            stamps.setdefault(origin.file, len(stamps))
        described = [
            [recipe.names, recipe.layout, recipe.permutation, [_described(t, stamps) for t in tensors]]
            for recipe, tensors in weights
        ]
        files = [[s.device, s.inode, s.nbytes, s.modified_ns, s.changed_ns, s.head] for s in stamps]
        return hashlib.sha256(
            json.dumps([version.__version__, packing, files, described]).encode()
        ).hexdigest()

    def find(self, key: str) -> list[HostArray] | None:
        """The weights kept under `key`, mapped read-only: uint8 `[nbytes]` each, or None."""
        return self._load(key, lambda file, size: opened(key, file, size))

    def keep(self, key: str, weights: Sequence[HostArray]) -> None:
        """Keeps the weights' bytes, uint8 `[nbytes]` each, under `key`, where there is room for them."""
        if self.folder is None:
            return
        nbytes = file_bytes([weight.nbytes for weight in weights])
        if nbytes > self.max_bytes:
            self._warn(f"{nbytes / 1e9:.1f} GB are more than the {self.max_bytes / 1e9:.1f} GB it may have")
        elif (room := room_in(self.folder)) is not None and room < nbytes + SPARE:
            self._warn(
                f"{nbytes / 1e9:.1f} GB are needed, {SPARE / 1e9:.1f} beside, and {room / 1e9:.1f} free"
            )
        else:
            self._keep(key, nbytes, lambda file: _write(file, key, weights))


def file_bytes(sizes: Sequence[int]) -> int:
    """The size of the file that keeps weights of these sizes."""
    return _head_bytes(len(sizes)) + sum(map(_paged, sizes))


def sealed(key: str, weights: Sequence[HostArray]) -> bytes:
    """The head of the file that keeps `weights`, with its padding."""
    sizes = np.array([len(weights), *(weight.nbytes for weight in weights)], _WORD)
    digest = hashlib.sha256()
    for weight in weights:
        whole = weight.nbytes // PAGE * PAGE
        rest = np.zeros(_paged(weight.nbytes - whole), np.uint8)
        rest[: weight.nbytes - whole] = weight[whole:]
        digest.update(page_sums(weight[:whole]))
        digest.update(page_sums(rest))
    directory = sizes.tobytes() + digest.digest()
    head = _MAGIC + f"{key}\n{hashlib.sha256(directory).hexdigest()}\n".encode() + directory
    return head.ljust(_head_bytes(len(weights)), b"\0")


def opened(key: str, file: BinaryIO, size: int) -> list[HostArray] | None:
    """The weights in a file of this size, mapped; None if it is another's, of another key, cut short or
    altered."""
    head = file.read(_FIXED + _WORD.itemsize)
    count = int.from_bytes(head[_FIXED:], "little")
    rest = _WORD.itemsize * count + _DIGEST
    if not head.startswith(_MAGIC + key.encode() + b"\n") or len(head) + rest > size:
        return None
    head += file.read(rest)
    directory = head[_FIXED:]
    if head[:_FIXED] != _MAGIC + f"{key}\n{hashlib.sha256(directory).hexdigest()}\n".encode():
        return None
    sizes = np.frombuffer(directory, _WORD, count, _WORD.itemsize).tolist()
    if size != file_bytes(sizes):
        return None
    mapping = mmap.mmap(file.fileno(), size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
    with contextlib.suppress(OSError, AttributeError):  # systems without: small pages work, slower
        mapping.madvise(mmap.MADV_HUGEPAGE)
    data = np.frombuffer(mapping, np.uint8)
    start = _head_bytes(count)
    if not is_whole(data[start:], directory[-_DIGEST:]):
        return None
    weights = []
    for nbytes in sizes:
        weights.append(data[start : start + nbytes])
        start += _paged(nbytes)
    return weights


def is_whole(pages: HostArray, digest: bytes) -> bool:
    """Whether the pages' sums are those that were written."""
    return hashlib.sha256(page_sums(pages)).digest() == digest


def page_sums(pages: HostArray) -> bytes:
    """For each page its words' sum, modulo 2^64: whatever changes in one word of a page shows, and pages that
    changed places do. uint8 `[pages · PAGE]` → 8 bytes a page."""
    words = pages.view(_WORD).reshape(-1, PAGE // _WORD.itemsize)
    return bytes(np.add.reduce(words, axis=1).tobytes())


def _write(file: BinaryIO, key: str, weights: Sequence[HostArray]) -> None:
    """In pieces of whole huge pages: where a file system can, it keeps in memory what was written so."""
    chunk, filled = bytearray(CHUNK), 0
    for piece in _pieces(key, weights):
        at = 0
        while at < len(piece):
            step = min(len(piece) - at, CHUNK - filled)
            chunk[filled : filled + step] = piece[at : at + step]
            at, filled = at + step, filled + step
            if filled == CHUNK:
                file.write(chunk)
                filled = 0
    file.write(chunk[:filled])


def _pieces(key: str, weights: Sequence[HostArray]) -> Iterator[memoryview]:
    """What the file is made of, in order."""
    yield memoryview(sealed(key, weights))
    for weight in weights:
        yield weight.data
        yield memoryview(bytes(_paged(weight.nbytes) - weight.nbytes))


def _described(tensor: EncodedTensor, stamps: dict[FileStamp, int]) -> list[object]:
    assert tensor.origin is not None
    order = tensor.row_order
    return [
        tensor.name, tensor.shape, _told(tensor.encoding), _told(tensor.stored), tensor.raw.nbytes,
        None if order is None else hashlib.sha256(np.asarray(order, "<i8").tobytes()).hexdigest(),
        stamps[tensor.origin.file], tensor.origin.offset,
    ]  # fmt: skip


def _told(encoding: Encoding | None) -> tuple[object, ...] | None:
    return None if encoding is None else (encoding.name, encoding.block, encoding.block_bytes)


def _head_bytes(count: int) -> int:
    return _paged(_FIXED + _WORD.itemsize * (1 + count) + _DIGEST)


def _paged(nbytes: int) -> int:
    return -(-nbytes // PAGE) * PAGE


def room_in(folder: Path) -> int | None:
    """Bytes free where `folder` is or would be; None where the system doesn't say."""
    for place in (folder, *folder.parents):
        with contextlib.suppress(OSError, AttributeError):
            told = os.statvfs(place)
            return told.f_bavail * told.f_frsize
    return None
