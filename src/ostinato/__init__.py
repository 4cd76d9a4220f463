"""ostinato runs language models: the decode step is a lazy tensor graph, planned and run for every token.

from ostinato import LLM

llm = LLM()
for piece in llm.chat("Name three rivers in Europe."):
    print(piece, end="", flush=True)
"""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ostinato import errors as errors
    from ostinato.decode.capture import CapturedDecodeSession as CapturedDecodeSession
    from ostinato.decode.data import DecodeTokenData as DecodeTokenData
    from ostinato.decode.forward import forward_with_kv_context as forward_with_kv_context
    from ostinato.decode.forward import forward_with_kv_context_captured as forward_with_kv_context_captured
    from ostinato.decode.forward import (
        forward_with_kv_context_persistent as forward_with_kv_context_persistent,
    )
    from ostinato.decode.kv_cache import KvCache as KvCache
    from ostinato.decode.kv_cache import KvRebindSource as KvRebindSource
    from ostinato.decode.rebind import RebindRefusal as RebindRefusal
    from ostinato.decode.session import DecodeSession as DecodeSession
    from ostinato.decode.session import StepSession as StepSession
    from ostinato.decode.slot import DecodeSlot as DecodeSlot
    from ostinato.decode.validity import PlanValidity as PlanValidity
    from ostinato.decode.want import All as All
    from ostinato.decode.want import Argmax as Argmax
    from ostinato.decode.want import Hidden as Hidden
    from ostinato.decode.want import Last as Last
    from ostinato.decode.want import Rows as Rows
    from ostinato.devices import register_defaults as register_defaults
    from ostinato.engine.conversation import Conversation as Conversation
    from ostinato.engine.llm import LLM as LLM
    from ostinato.engine.llm import Generation as Generation
    from ostinato.engine.receipt import Receipt as Receipt
    from ostinato.generate.settings import Sampling as Sampling
    from ostinato.host.version import __version__ as __version__
    from ostinato.ir.dtype import DType as DType
    from ostinato.ir.location import Location as Location
    from ostinato.models.contract import Model as Model
    from ostinato.models.loader import load_model as load_model
    from ostinato.runtime.context import InferenceContext as InferenceContext

# By string, so that `import ostinato` loads nothing of it before it is used.
_HOMES = {
    "All": "ostinato.decode.want",
    "Argmax": "ostinato.decode.want",
    "CapturedDecodeSession": "ostinato.decode.capture",
    "Conversation": "ostinato.engine.conversation",
    "DType": "ostinato.ir.dtype",
    "DecodeSession": "ostinato.decode.session",
    "DecodeSlot": "ostinato.decode.slot",
    "DecodeTokenData": "ostinato.decode.data",
    "Generation": "ostinato.engine.llm",
    "Hidden": "ostinato.decode.want",
    "InferenceContext": "ostinato.runtime.context",
    "KvCache": "ostinato.decode.kv_cache",
    "KvRebindSource": "ostinato.decode.kv_cache",
    "LLM": "ostinato.engine.llm",
    "Last": "ostinato.decode.want",
    "Location": "ostinato.ir.location",
    "Model": "ostinato.models.contract",
    "PlanValidity": "ostinato.decode.validity",
    "RebindRefusal": "ostinato.decode.rebind",
    "Receipt": "ostinato.engine.receipt",
    "Rows": "ostinato.decode.want",
    "Sampling": "ostinato.generate.settings",
    "StepSession": "ostinato.decode.session",
    "__version__": "ostinato.host.version",
    "forward_with_kv_context": "ostinato.decode.forward",
    "forward_with_kv_context_captured": "ostinato.decode.forward",
    "forward_with_kv_context_persistent": "ostinato.decode.forward",
    "load_model": "ostinato.models.loader",
    "register_defaults": "ostinato.devices",
}

__all__ = [*sorted(_HOMES), "errors"]

logging.getLogger("ostinato").addHandler(logging.NullHandler())


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("ostinato.errors")
    if name not in _HOMES:
        raise AttributeError(f"module 'ostinato' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
