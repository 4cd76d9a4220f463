"""Hugging Face model folders, "checkpoints": config.json and memory-mapped safetensors weights.

Format of the weights: https://github.com/huggingface/safetensors#format
"""

from ostinato.formats.safetensors.checkpoint import Checkpoint
from ostinato.formats.safetensors.config import Config, read_config
from ostinato.formats.safetensors.header import SafeTensor
from ostinato.formats.safetensors.strictjson import JsonValue

__all__ = ["Checkpoint", "Config", "JsonValue", "SafeTensor", "read_config"]
