"""The models that the benchmarks run on, made from the default one.

    python benchmarks/make_models.py FOLDER [--llama-python PYTHON] [--only NAME ...]

F16, BF16 and Q8_0 are written by this project's converter, Q4_0 by llama.cpp's quantiser from the F16 file
(with --llama-python, a Python that has llama-cpp-python). `random-0.5b` and `random-1.5b` are Llama models of
random Q4_0 weights with the default model's tokenizer: what they say is nonsense, what they cost is not.
`small-f16` is a small one of normal weights, whose rows super-blocks of 256 divide as they don't the default
model's; `small-q4_k_m` and so on are what llama.cpp's quantiser makes of it. With --only it makes the same
of the default model: `--only q4_1 q5_0 …`, and `wide`, random too, whose vocabulary is 262,144.
"""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from pathlib import Path

import numpy as np

from ostinato import hub
from ostinato.engine.convert import convert
from ostinato.engine.opened import ENCODINGS
from ostinato.formats.gguf import GgufFile
from ostinato.formats.gguf.writer import TensorSource, write_gguf
from ostinato.ir import encoding as enc
from ostinato.models.llama import Config, to_gguf, weight_specs
from ostinato.models.rope import RopeSpec

CONVERTED = ("f16", "bf16", "q8_0")
PIECE = 1 << 20
"""Blocks of a random tensor that are made at once."""

_QUANTIZE = """
import ctypes, sys
from llama_cpp import llama_cpp as c
c.llama_backend_init()
params = c.llama_model_quantize_default_params()
params.ftype, params.pure = getattr(c, "LLAMA_FTYPE_MOSTLY_" + sys.argv[3]), len(sys.argv) > 4
sys.exit(c.llama_model_quantize(sys.argv[1].encode(), sys.argv[2].encode(), ctypes.byref(params)))
"""


@dataclass(frozen=True)
class Size:
    """Of a random model; heads are 64 wide, as the default model's are, and the embedding is the head too."""

    layers: int
    dim: int
    ffn: int
    kv_heads: int
    vocab: int = 0
    """Tokens; 0 for those of the default model. Further ones have names and no merges."""


RANDOM = {"random-0.5b": Size(24, 1280, 3456, 5), "random-1.5b": Size(30, 2048, 5632, 8)}
WIDE = Size(18, 640, 2048, 1, vocab=262_144)
"""As small models with a vocabulary for many languages: half of what a token reads is the head."""
SMALL = Size(4, 512, 1536, 4)
NAMES = ("Q2_K", "Q3_K_M", "Q4_K_M", "Q5_0", "Q5_1", "Q5_K_M", "Q6_K", "IQ4_NL", "IQ4_XS")
MXFP4 = "MXFP4_MOE"
"""Of which all matrices are made here, not those of experts alone."""
QUANTIZED = {f"small-{name.lower()}": name for name in NAMES} | {"small-mxfp4": MXFP4}
"""Made of the small model, by llama.cpp's names."""
OF_THE_DEFAULT = {name.lower(): name for name in ("Q4_0", "Q4_1", *NAMES)} | {"mxfp4": MXFP4}
"""Made of the default one; but for Q4_0 when they are asked for."""


def random_model(path: Path, size: Size, default: Path, encoding: enc.Encoding) -> None:
    """A Llama model whose matrices are random Q4_0 blocks or F16 numbers, scaled so that activations keep
    their size."""
    with GgufFile.open(default) as file:
        metadata = file.metadata.typed()
        tokenizer = {key: value for key, value in metadata.items() if key.startswith("tokenizer.")}
        base = Config.from_gguf(file)
    more = range(base.vocab_size, size.vocab)
    if more:
        tokens, types = (tokenizer[f"tokenizer.ggml.{key}"] for key in ("tokens", "token_type"))
        tokenizer["tokenizer.ggml.tokens"] = [*tokens, *(f"<further {at}>" for at in more)]
        tokenizer["tokenizer.ggml.token_type"] = np.array([*types, *[5] * len(more)], np.int32)  # unused
    heads = size.dim // 64
    config = Config(
        vocab_size=base.vocab_size + len(more), context_length=8192, n_layers=size.layers, dim=size.dim,
        ffn_dim=size.ffn, heads=heads, kv_heads=size.kv_heads, head_dim=64, norm_eps=base.norm_eps,
        rope=RopeSpec(base.rope.base, 64), window=None, tied=True, qkv_bias=False,
        output_bias=False, ffn_bias=False,
    )  # fmt: skip
    specs = weight_specs(config)
    count = sum(prod(spec.shape) for spec in specs.values())
    print(f"{path.name}: {count / 1e9:.2f} B parameters")
    head = {
        **to_gguf(config),
        "general.name": path.stem,
        "general.file_type": 2 if encoding == enc.Q4_0 else 1,
        **tokenizer,
    }
    made = _random if encoding == enc.Q4_0 else _normal
    tensors = (made(spec.gguf, spec.shape, seed) for seed, spec in enumerate(specs.values()))
    write_gguf(path, head, tensors)


def _random(name: str, shape: tuple[int, ...], seed: int) -> TensorSource:
    if len(shape) == 1:
        return TensorSource(name, shape, enc.F32, np.ones(shape, np.float32))
    blocks = prod(shape) // enc.Q4_0.block
    # A nibble less 8 deviates by 4.6: with this scale a row of k weights has the length 1.
    scale = np.float16(1 / (4.6 * shape[-1] ** 0.5))

    def data() -> Iterator[np.ndarray]:
        rng = np.random.default_rng(seed)
        for at in range(0, blocks, PIECE):
            count = min(PIECE, blocks - at)
            piece = rng.integers(0, 256, (count, enc.Q4_0.block_bytes), np.uint8)
            piece[:, :2] = np.frombuffer(scale.tobytes(), np.uint8)
            yield piece

    return TensorSource(name, shape, enc.Q4_0, data)


def _normal(name: str, shape: tuple[int, ...], seed: int) -> TensorSource:
    if len(shape) == 1:
        return _random(name, shape, seed)
    values = np.random.default_rng(seed).standard_normal(shape, np.float32) / sqrt(shape[-1])
    return TensorSource(name, shape, enc.F16, values.astype(np.float16))


def main() -> None:
    made = [*CONVERTED, "q4_0", *RANDOM, "small-f16", *QUANTIZED]
    names = [*made, "wide", *(name for name in OF_THE_DEFAULT if name not in made)]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--llama-python", help="a Python with llama-cpp-python")
    parser.add_argument("--only", nargs="+", choices=names, help="of all that can be made")
    options = parser.parse_args()
    wanted = options.only or made
    quantized = [name for name in (*OF_THE_DEFAULT, *QUANTIZED) if name in wanted]
    if quantized and not options.llama_python:
        parser.error(f"{', '.join(quantized)} need --llama-python; leave them out with --only")
    options.folder.mkdir(parents=True, exist_ok=True)
    default = hub.resolve(hub.DEFAULT_MODEL, progress=True).path

    def path(name: str) -> Path:
        return Path(options.folder / f"{name}.gguf")

    from_default = set(quantized) & set(OF_THE_DEFAULT)
    for name in CONVERTED:
        if name in wanted or (name == "f16" and from_default and not path(name).exists()):
            convert(default, path(name), ENCODINGS[name])
    for name, size in RANDOM.items():
        if name in wanted:
            random_model(path(name), size, default, enc.Q4_0)
    if "wide" in wanted:
        random_model(path("wide"), WIDE, default, enc.Q4_0)
    if "small-f16" in wanted or (set(quantized) & set(QUANTIZED) and not path("small-f16").exists()):
        random_model(path("small-f16"), SMALL, default, enc.F16)
    for name in quantized:
        source = path("f16" if name in OF_THE_DEFAULT else "small-f16")
        kind = (OF_THE_DEFAULT | QUANTIZED)[name]
        command = [options.llama_python, "-c", _QUANTIZE, str(source), str(path(name)), kind]
        command += ["pure"] if kind == MXFP4 else []
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    for name in names:
        if path(name).exists():
            print(f"{path(name)}  {path(name).stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
