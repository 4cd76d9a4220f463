"""What can be wrong with a model file: missing, unreadable, malformed, or in an encoding out of reach."""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError

_CLIP = 120  # names in a hostile file can be long; a message shows this many characters of one

# What has a codec or an encoder in `formats.encodings`, in the order of docs/encodings.md; a test holds both.
_DECODED = "F32, F16, BF16, Q4_0 to Q8_0, Q2_K to Q6_K, IQ1_S to IQ4_XS, TQ1_0, TQ2_0, MXFP4 or NVFP4"
_ENCODED = "F32, F16, BF16, Q4_0, Q4_1 or Q8_0"


def _clip(text: str) -> str:
    shown = text if len(text) <= _CLIP else text[: _CLIP - 1] + "…"
    if shown.isprintable():
        return shown
    # A terminal or a log gets no control characters and no lone surrogates from a file.
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in shown)


@dataclass(eq=False, repr=False)
class ModelFormatError(OstinatoError, ValueError):
    """A model file's contents break its format.

    `field` is the header field, metadata key or tensor property that is wrong, `offset` the byte where
    it lies (None when it has no place of its own, such as a missing key). `advice` replaces the general
    remedy where the cause is known better.
    """

    file: str
    field: str
    expected: str
    got: str
    offset: int | None = None
    advice: str = ""

    def message(self) -> str:
        where = "" if self.offset is None else f" at byte {self.offset}"
        return (
            f"{self.file}: {_clip(self.field)}{where}: expected {_clip(self.expected)}, got {_clip(self.got)}"
        )

    @property
    def remedy(self) -> str:
        return self.advice or "The file is damaged or not a model of this format; fetch it again."


@dataclass(eq=False, repr=False)
class UnsupportedEncoding(OstinatoError, ValueError):
    """A tensor is stored in an encoding that ostinato can name but not decode."""

    file: str
    tensor: str
    encoding: str

    def message(self) -> str:
        return (
            f"{self.file}: tensor {_clip(self.tensor)} is stored as {self.encoding}, which has no codec here"
        )

    @property
    def remedy(self) -> str:
        return f"Choose a file of this model in {_DECODED}."


@dataclass(eq=False, repr=False)
class NoEncoder(OstinatoError, ValueError):
    """`tensor` of `file` was to be stored in an encoding that ostinato cannot write, though it may read it.

    `tensor` may also name several, as "all matrices" does.
    """

    file: str
    tensor: str
    encoding: str

    def message(self) -> str:
        return f"{self.file}: {self.encoding}, asked for {_clip(self.tensor)}, has no encoder here"

    @property
    def remedy(self) -> str:
        return f"Ask for {_ENCODED}."


@dataclass(eq=False, repr=False)
class ModelFileMissing(OstinatoError, FileNotFoundError):
    """There is no file at the path."""

    file: str

    def message(self) -> str:
        return f"{self.file}: no such model file"

    @property
    def remedy(self) -> str:
        return "Check the path, or fetch the model first."


@dataclass(eq=False, repr=False)
class ModelPartMissing(ModelFileMissing):
    """`file`, part `number` (from 1) of the `count` of the model that `first` begins, is not there."""

    first: str
    number: int
    count: int

    def message(self) -> str:
        return f"{self.file}: no such file; it is part {self.number} of {self.count} of {self.first}"

    @property
    def remedy(self) -> str:
        return f"Put all {self.count} parts into one folder, under the names that they were made with."


@dataclass(eq=False, repr=False)
class ModelFileUnreadable(OstinatoError, OSError):
    """The operating system refused to open or map the file; `reason` is what it said."""

    file: str
    reason: str

    def message(self) -> str:
        return f"{self.file}: the model file cannot be read: {self.reason}"

    @property
    def remedy(self) -> str:
        return "Check the file's permissions and the volume that it lies on."


@dataclass(eq=False, repr=False)
class ModelFileClosed(OstinatoError, ValueError):
    """Tensor data was asked of a model file that has been closed."""

    file: str

    def message(self) -> str:
        return f"{self.file}: the model file is closed, its tensors' bytes are gone"

    @property
    def remedy(self) -> str:
        return "Read the data inside the `with` block, or keep the file open while its tensors are in use."


@dataclass(eq=False, repr=False)
class ModelFileChanged(OstinatoError, OSError):
    """A model file was shortened to `size` bytes while it was open; `tensor` ends at byte `needed`."""

    file: str
    tensor: str
    needed: int
    size: int

    def message(self) -> str:
        return (
            f"{self.file}: the file was shortened to {self.size} bytes while it was open, "
            f"and tensor {_clip(self.tensor)} ends at byte {self.needed}"
        )

    @property
    def remedy(self) -> str:
        return "Load the model again from a whole file; to replace one in use, rename the new one over it."


@dataclass(eq=False, repr=False)
class InvalidModelContent(OstinatoError, ValueError):
    """What was to be written to a model file breaks the format; `field` as in `ModelFormatError`."""

    file: str
    field: str
    expected: str
    got: str

    def message(self) -> str:
        return (
            f"{self.file} was not written: {_clip(self.field)}: "
            f"expected {_clip(self.expected)}, got {_clip(self.got)}"
        )

    @property
    def remedy(self) -> str:
        return "Correct what is passed to write_gguf; a file that was there before is unchanged."
