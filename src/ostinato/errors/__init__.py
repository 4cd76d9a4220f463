"""Every error that ostinato raises on purpose; a class per cause, `OstinatoError` their root."""

from __future__ import annotations

from ostinato.errors.base import OstinatoError
from ostinato.errors.decode import (
    CacheMismatch,
    CapacityExceeded,
    EmptyStep,
    InvalidTruncation,
    RowOutOfRange,
    TokenOutOfRange,
)
from ostinato.errors.device import (
    DeviceAlreadyRegistered,
    DeviceMismatch,
    IndexOutOfRange,
    NoDevice,
    NoKernel,
    TopologyChanged,
    WeightLayoutConflict,
    WorkspaceBusy,
)
from ostinato.errors.formats import (
    ModelFileClosed,
    ModelFileMissing,
    ModelFileUnreadable,
    ModelFormatError,
    UnsupportedEncoding,
)
from ostinato.errors.generate import (
    EmptyPrompt,
    InvalidLogits,
    InvalidSetting,
    NoChatTemplate,
    PromptTooLong,
)
from ostinato.errors.graph import (
    BindingMismatch,
    ConflictingSymbol,
    DTypeMismatch,
    GraphMixed,
    ShapeMismatch,
    UnboundConst,
    UnboundSymbol,
    WriteConflict,
)
from ostinato.errors.host import CacheNotWritable, NotEnoughDiskSpace
from ostinato.errors.hub import (
    Attempt,
    ChecksumMismatch,
    ModelNotCached,
    ModelUnavailable,
    OutsideCache,
    UnknownModel,
)
from ostinato.errors.model import (
    MissingTensors,
    NotEnoughMemory,
    TensorShapeMismatch,
    UnexpectedTensors,
    UnknownArchitecture,
    UnsupportedModel,
)
from ostinato.errors.text import (
    ChatTemplateError,
    TokenizerFormatError,
    UnknownToken,
    UnsupportedPreTokenizer,
    UnsupportedTokenizer,
)

__all__ = [
    "Attempt",
    "BindingMismatch",
    "CacheMismatch",
    "CacheNotWritable",
    "CapacityExceeded",
    "ChatTemplateError",
    "ChecksumMismatch",
    "ConflictingSymbol",
    "DTypeMismatch",
    "DeviceAlreadyRegistered",
    "DeviceMismatch",
    "EmptyPrompt",
    "EmptyStep",
    "GraphMixed",
    "IndexOutOfRange",
    "InvalidLogits",
    "InvalidSetting",
    "InvalidTruncation",
    "MissingTensors",
    "ModelFileClosed",
    "ModelFileMissing",
    "ModelFileUnreadable",
    "ModelFormatError",
    "ModelNotCached",
    "ModelUnavailable",
    "NoChatTemplate",
    "NoDevice",
    "NoKernel",
    "NotEnoughDiskSpace",
    "NotEnoughMemory",
    "OstinatoError",
    "OutsideCache",
    "PromptTooLong",
    "RowOutOfRange",
    "ShapeMismatch",
    "TensorShapeMismatch",
    "TokenOutOfRange",
    "TokenizerFormatError",
    "TopologyChanged",
    "UnboundConst",
    "UnboundSymbol",
    "UnexpectedTensors",
    "UnknownArchitecture",
    "UnknownModel",
    "UnknownToken",
    "UnsupportedEncoding",
    "UnsupportedModel",
    "UnsupportedPreTokenizer",
    "UnsupportedTokenizer",
    "WeightLayoutConflict",
    "WorkspaceBusy",
    "WriteConflict",
]
