"""Why a folder is no checkpoint that can be opened: files missing, or weights in another format."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError

_SHOWN = 4  # file names in a message
_CLIP = 80  # characters of one


@dataclass(eq=False, repr=False)
class IncompleteCheckpoint(OstinatoError, FileNotFoundError):
    """`folder` lacks the files `missing`; `found` are the weight files that lie there instead, if any."""

    folder: str
    missing: tuple[str, ...]
    found: tuple[str, ...] = ()

    def message(self) -> str:
        beside = f" (it holds {_names(self.found)})" if self.found else ""
        return f"{self.folder}: there is no {' and no '.join(self.missing)}{beside}"

    @property
    def remedy(self) -> str:
        return (
            "Fetch the whole model: config.json, the .safetensors files, and their index if they are several."
        )


@dataclass(eq=False, repr=False)
class MissingShards(OstinatoError, FileNotFoundError):
    """The index `file` names weight files, `shards`, that don't lie beside it."""

    file: str
    shards: tuple[str, ...]

    def message(self) -> str:
        many = len(self.shards) != 1
        return (
            f"{self.file}: {len(self.shards)} of its weight files {'are' if many else 'is'} missing: "
            f"{_names(self.shards)}"
        )

    @property
    def remedy(self) -> str:
        return "The download is incomplete: fetch the missing files into the same folder."


@dataclass(eq=False, repr=False)
class PickledWeights(OstinatoError, ValueError):
    """`folder` has its weights only as pickles, `files`. Reading a pickle runs the code in it: never done."""

    folder: str
    files: tuple[str, ...]

    def message(self) -> str:
        return f"{self.folder}: the weights are pickled ({_names(self.files)}), and unpickling runs code"

    @property
    def remedy(self) -> str:
        return (
            "Take the model's .safetensors files, or convert it where you trust its author: "
            "save_pretrained(folder, safe_serialization=True) in transformers."
        )


@dataclass(eq=False, repr=False)
class GgufFolder(OstinatoError, ValueError):
    """`folder` holds GGUF files, `files`, each of them a whole model, and no safetensors weights."""

    folder: str
    files: tuple[str, ...]

    def message(self) -> str:
        return f"{self.folder}: the folder holds GGUF files, no safetensors: {_names(self.files)}"

    @property
    def remedy(self) -> str:
        return "Name the GGUF file that you want instead of its folder."


def _names(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(_plain(name) for name in names[:_SHOWN]) + more


def _plain(name: str) -> str:
    shown = name if len(name) <= _CLIP else name[: _CLIP - 1] + "…"
    # A terminal or a log gets no control characters and no lone surrogates from a file's name.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)
