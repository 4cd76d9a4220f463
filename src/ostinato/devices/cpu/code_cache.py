"""Compiled objects on disk, so that a second start compiles nothing.

An entry is a header with the key and the SHA-256 of what follows, then the object. Whoever can write to the
folder can run code in this process, so `host.kept` asks whose it is each time.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from pathlib import Path

from ostinato.devices.cpu import llvm
from ostinato.devices.cpu.isa import Isa
from ostinato.host import dirs, version
from ostinato.host.kept import KeptFiles

MAX_BYTES = 256 << 20
CODEGEN = "1"
"""Raised whenever `compiler` makes other code of the same IR."""

_MAGIC = b"ostinato code 1\n"
_HEADER = len(_MAGIC) + 64 + 1 + 64 + 1


class CodeCache(KeptFiles):
    """The objects in `folder`, at most `max_bytes` of them; a cache never fails a compilation."""

    what = "compiled code"
    suffix = ".code"
    unsaid = threading.Lock()

    def __init__(self, folder: Path | None, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(folder, max_bytes)

    @classmethod
    def of_user(cls) -> CodeCache:
        """The user's own, in `code` inside the cache folder; nothing is created before the first `put`."""
        return cls(dirs.code_dir(create=False))

    @staticmethod
    def key_of(source: Sequence[str], isa: Isa) -> str:
        """The SHA-256 of everything that an object is made from; `source` is the IR, or what the IR is made
        from. Raises NativeCompilerMissing."""
        digest = hashlib.sha256()
        for part in (str(len(source)), *source, *identity(isa)):
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little"))
            digest.update(data)
        return digest.hexdigest()

    def get(self, key: str) -> bytes | None:
        """The object kept under `key`, or None. An entry that isn't what it should be is dropped."""
        return self._load(key, lambda file, size: unsealed(key, file.read()))

    def put(self, key: str, data: bytes) -> None:
        """Keeps `data` under `key`."""
        sealed = seal(key, data)
        self._keep(key, len(sealed), lambda file: file.write(sealed))


def identity(isa: Isa) -> tuple[str, ...]:
    """Everything beside its source that an object depends on, or that may have changed how it is made."""
    return (isa.name, isa.cpu, isa.features, llvm.triple(), *llvm.versions(), version.__version__, CODEGEN)


def seal(key: str, data: bytes) -> bytes:
    """The file that keeps `data`."""
    return _MAGIC + f"{key}\n{hashlib.sha256(data).hexdigest()}\n".encode() + data


def unsealed(key: str, file: bytes) -> bytes | None:
    """What `seal` was given, or None if the file is another's, of another key, cut short or altered."""
    data = file[_HEADER:]
    return data if file == seal(key, data) else None
