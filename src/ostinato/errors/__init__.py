"""Every error that ostinato raises on purpose; a class per cause, `OstinatoError` their root."""

from __future__ import annotations

import importlib
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato.errors.base import OstinatoError
    from ostinato.errors.checkpoint import (
        GgufFolder,
        IncompleteCheckpoint,
        MissingShards,
        PickledWeights,
    )
    from ostinato.errors.cpu import (
        InstructionSetMissing,
        NativeCodeForbidden,
        NativeCodeRefused,
        NativeCompilerMissing,
        NativeFunctionMissing,
        NativeSymbolMissing,
        PoolAfterFork,
        PoolClosed,
        SelfTestFailed,
    )
    from ostinato.errors.decode import (
        CacheMismatch,
        CapacityExceeded,
        CaptureNotPossible,
        EmptyStep,
        InvalidTruncation,
        InvalidWant,
        RowOutOfRange,
        SlotBusy,
        StaleCapture,
        StaleLogits,
        TokenDataMismatch,
        TokenOutOfRange,
    )
    from ostinato.errors.device import (
        DeviceAlreadyRegistered,
        DeviceMismatch,
        IndexOutOfRange,
        MalformedLocation,
        NoDevice,
        NoKernel,
        NotVarying,
        OutOfDeviceMemory,
        TopologyChanged,
        WeightLayoutConflict,
        WorkspaceBusy,
    )
    from ostinato.errors.formats import (
        InvalidModelContent,
        ModelFileChanged,
        ModelFileClosed,
        ModelFileMissing,
        ModelFileUnreadable,
        ModelFormatError,
        ModelPartMissing,
        NoEncoder,
        UnsupportedEncoding,
    )
    from ostinato.errors.generate import (
        CacheChanged,
        ConversationBusy,
        EmptyPrompt,
        GenerationBusy,
        InvalidLogits,
        InvalidSetting,
        NoChatTemplate,
        PromptTooLong,
        StartFailed,
    )
    from ostinato.errors.graph import (
        BindingMismatch,
        ConflictingSymbol,
        DataDependentExtent,
        DTypeMismatch,
        GraphMixed,
        NoValueYet,
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
    from ostinato.errors.huggingface import (
        HubAccessDenied,
        HubCacheNotWritable,
        HubChoice,
        HubChoiceNeeded,
        HubDiskFull,
        HubDownloadFailed,
        HubFileMissing,
        HubModelMissing,
        HubRateLimited,
        HubRepositoryMissing,
        HubRevisionMissing,
        HubUnreachable,
        MalformedHubReference,
        PickleRefused,
    )
    from ostinato.errors.model import (
        FamilyIncomplete,
        MissingTensors,
        NotEnoughMemory,
        TensorShapeMismatch,
        UnexpectedTensors,
        UnknownArchitecture,
        UnsupportedModel,
    )
    from ostinato.errors.text import (
        ChatTemplateError,
        TextNotEncodable,
        TokenizerFilesMissing,
        TokenizerFormatError,
        TokenizerNotConvertible,
        UnknownToken,
        UnsupportedPreTokenizer,
        UnsupportedTokenizer,
    )

__all__ = [
    "Attempt",
    "BindingMismatch",
    "CacheChanged",
    "CacheMismatch",
    "CacheNotWritable",
    "CapacityExceeded",
    "CaptureNotPossible",
    "ChatTemplateError",
    "ChecksumMismatch",
    "ConflictingSymbol",
    "ConversationBusy",
    "DTypeMismatch",
    "DataDependentExtent",
    "DeviceAlreadyRegistered",
    "DeviceMismatch",
    "EmptyPrompt",
    "EmptyStep",
    "FamilyIncomplete",
    "GenerationBusy",
    "GgufFolder",
    "GraphMixed",
    "HubAccessDenied",
    "HubCacheNotWritable",
    "HubChoice",
    "HubChoiceNeeded",
    "HubDiskFull",
    "HubDownloadFailed",
    "HubFileMissing",
    "HubModelMissing",
    "HubRateLimited",
    "HubRepositoryMissing",
    "HubRevisionMissing",
    "HubUnreachable",
    "IncompleteCheckpoint",
    "IndexOutOfRange",
    "InstructionSetMissing",
    "InvalidLogits",
    "InvalidModelContent",
    "InvalidSetting",
    "InvalidTruncation",
    "InvalidWant",
    "MalformedHubReference",
    "MalformedLocation",
    "MissingShards",
    "MissingTensors",
    "ModelFileChanged",
    "ModelFileClosed",
    "ModelFileMissing",
    "ModelFileUnreadable",
    "ModelFormatError",
    "ModelNotCached",
    "ModelPartMissing",
    "ModelUnavailable",
    "NativeCodeForbidden",
    "NativeCodeRefused",
    "NativeCompilerMissing",
    "NativeFunctionMissing",
    "NativeSymbolMissing",
    "NoChatTemplate",
    "NoDevice",
    "NoEncoder",
    "NoKernel",
    "NoValueYet",
    "NotEnoughDiskSpace",
    "NotEnoughMemory",
    "NotVarying",
    "OstinatoError",
    "OutOfDeviceMemory",
    "OutsideCache",
    "PickleRefused",
    "PickledWeights",
    "PoolAfterFork",
    "PoolClosed",
    "PromptTooLong",
    "RowOutOfRange",
    "SelfTestFailed",
    "ShapeMismatch",
    "SlotBusy",
    "StaleCapture",
    "StaleLogits",
    "StartFailed",
    "TensorShapeMismatch",
    "TextNotEncodable",
    "TokenDataMismatch",
    "TokenOutOfRange",
    "TokenizerFilesMissing",
    "TokenizerFormatError",
    "TokenizerNotConvertible",
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


def __getattr__(name: str) -> Any:
    """Errors are imported when they are asked for: a process that meets none pays for none."""
    if name in __all__:
        for file in iter_modules(__path__):
            module = importlib.import_module(f"{__name__}.{file.name}")
            if name in vars(module) and vars(module)[name].__module__ == module.__name__:
                globals()[name] = vars(module)[name]
                return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
