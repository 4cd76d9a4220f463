"""Llama and its kin: Llama 2 and 3, SmolLM2, Mistral, TinyLlama (Touvron et al. 2023, arXiv:2302.13971).

Pre-norm blocks, grouped KV heads, SwiGLU, rotary embedding over the whole head, no biases unless the file
has them, a head of its own or the embedding table used twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostinato.errors.model import UnsupportedModel
from ostinato.formats.gguf import GgufFile
from ostinato.ir import Tensor, embedding, linear, rms_norm, rope, swiglu
from ostinato.models.checks import in_range, one_of
from ostinato.models.contract import Family, KvView, LayerKv, RowOrder, StepInputs, Weights, WeightSpec
from ostinato.models.gguf_rope import rope_from_gguf
from ostinato.models.rope import RopeSpec


@dataclass(frozen=True)
class Config:
    """Every number that shapes the graph."""

    vocab_size: int
    context_length: int
    n_layers: int
    dim: int
    ffn_dim: int
    heads: int
    kv_heads: int
    head_dim: int
    norm_eps: float
    rope: RopeSpec
    window: int | None
    tied: bool
    qkv_bias: bool
    output_bias: bool
    ffn_bias: bool

    @property
    def kv(self) -> tuple[LayerKv, ...]:
        return (LayerKv(self.kv_heads, self.head_dim, self.head_dim, self.window),) * self.n_layers

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        return (self.rope,)

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Config:
        """Raises ModelFormatError for missing or absurd numbers, UnsupportedModel for experts."""
        meta, tensors = file.metadata, file.tensors
        if meta.integer("llama.expert_count", 0):
            raise UnsupportedModel(
                str(file.path), "llama.expert_count", "none", str(meta["llama.expert_count"])
            )
        heads = in_range(meta, "llama.attention.head_count")
        dim = in_range(meta, "llama.embedding_length")
        head_dim = in_range(meta, "llama.attention.key_length", default=dim // heads)
        one_of(meta, "llama.attention.value_length", head_dim, default=head_dim)
        kv_heads = in_range(meta, "llama.attention.head_count_kv", default=heads)
        one_of(meta, "llama.attention.head_count", *range(kv_heads, heads + 1, kv_heads))
        window = in_range(meta, "llama.attention.sliding_window", low=0, default=0)
        return cls(
            vocab_size=len(meta.texts("tokenizer.ggml.tokens")),
            context_length=in_range(meta, "llama.context_length"),
            n_layers=in_range(meta, "llama.block_count"),
            dim=dim,
            ffn_dim=in_range(meta, "llama.feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=meta.number("llama.attention.layer_norm_rms_epsilon"),
            rope=rope_from_gguf(file, "llama", head_dim),
            window=window or None,
            tied="output.weight" not in tensors,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            output_bias="blk.0.attn_output.bias" in tensors,
            ffn_bias="blk.0.ffn_gate.bias" in tensors,
        )


def weight_specs(config: Config) -> Mapping[str, WeightSpec]:
    """Canonical name → shape, GGUF name, and where GGUF's row order differs, that order."""
    c = config
    q_dim, kv_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim
    q_rows, k_rows = _half_split_rows(c.heads, c), _half_split_rows(c.kv_heads, c)
    specs = {"embedding": WeightSpec((c.vocab_size, c.dim), "token_embd.weight")}
    for i in range(c.n_layers):
        matrices: dict[str, tuple[str, tuple[int, int], bool, RowOrder | None]] = {
            "q": ("attn_q", (q_dim, c.dim), c.qkv_bias, q_rows),
            "k": ("attn_k", (kv_dim, c.dim), c.qkv_bias, k_rows),
            "v": ("attn_v", (kv_dim, c.dim), c.qkv_bias, None),
            "o": ("attn_output", (c.dim, q_dim), c.output_bias, None),
            "gate": ("ffn_gate", (c.ffn_dim, c.dim), c.ffn_bias, None),
            "up": ("ffn_up", (c.ffn_dim, c.dim), c.ffn_bias, None),
            "down": ("ffn_down", (c.dim, c.ffn_dim), c.ffn_bias, None),
        }
        specs[f"{i}.attention_norm"] = WeightSpec((c.dim,), f"blk.{i}.attn_norm.weight", i)
        specs[f"{i}.ffn_norm"] = WeightSpec((c.dim,), f"blk.{i}.ffn_norm.weight", i)
        for name, (gguf, shape, biased, order) in matrices.items():
            specs[f"{i}.{name}"] = WeightSpec(shape, f"blk.{i}.{gguf}.weight", i, order)
            if biased:
                specs[f"{i}.{name}.bias"] = WeightSpec(shape[:1], f"blk.{i}.{gguf}.bias", i, order)
    specs["norm"] = WeightSpec((c.dim,), "output_norm.weight")
    if not c.tied:
        specs["head"] = WeightSpec((c.vocab_size, c.dim), "output.weight")
    return specs


def block(config: Config, weights: Weights, i: int, x: Tensor, step: StepInputs, kv: KvView) -> Tensor:
    """One layer: x `[rows, dim]` → `[rows, dim]`."""
    c = config
    rows = x.shape[0]

    def project(name: str, x: Tensor) -> Tensor:
        return linear(x, weights[f"{i}.{name}"], weights.get(f"{i}.{name}.bias"))

    h = rms_norm(x, weights[f"{i}.attention_norm"], c.norm_eps)  # [rows, dim]
    q = project("q", h).reshape(rows, c.heads, c.head_dim)  # [rows, heads, head_dim]
    k = project("k", h).reshape(rows, c.kv_heads, c.head_dim)  # [rows, kv_heads, head_dim]
    v = project("v", h).reshape(rows, c.kv_heads, c.head_dim)  # [rows, kv_heads, head_dim]
    cos, sin = step.rope_cos[0], step.rope_sin[0]  # [rows, rot/2]
    kv.append(rope(k, cos, sin), v)
    a = kv.attend(rope(q, cos, sin), window=c.window, scale=c.head_dim**-0.5)  # [rows, heads · head_dim]
    x = x + project("o", a)  # [rows, dim]

    h = rms_norm(x, weights[f"{i}.ffn_norm"], c.norm_eps)  # [rows, dim]
    f = swiglu(project("gate", h), project("up", h))  # [rows, ffn_dim]
    return x + project("down", f)  # [rows, dim]


def forward(config: Config, weights: Weights, step: StepInputs, kv: Sequence[KvView]) -> Tensor:
    """The final normed hidden rows: `[rows, dim]`."""
    x = embedding(step.token_ids, weights["embedding"])  # [rows, dim]
    for i, layer in enumerate(kv):
        x = block(config, weights, i, x, step, layer)
    return rms_norm(x, weights["norm"], config.norm_eps)


def head(config: Config, weights: Weights, hidden: Tensor) -> Tensor:
    """Logits: hidden `[n, dim]` → `[n, vocab]`."""
    return linear(hidden, weights["embedding" if config.tied else "head"])


def _half_split_rows(heads: int, config: Config) -> RowOrder:
    """GGUF's llama files interleave the rotated rows of each head, so that pairs are (2i, 2i+1)."""
    head_dim, rot = config.head_dim, config.rope.rot

    def rows() -> npt.NDArray[np.intp]:
        within = np.concatenate([np.arange(0, rot, 2), np.arange(1, rot, 2), np.arange(rot, head_dim)])
        order: npt.NDArray[np.intp] = (np.arange(heads)[:, None] * head_dim + within).reshape(-1)
        return order

    return rows


LLAMA = Family(
    name="llama",
    gguf_architectures=("llama",),
    from_gguf=Config.from_gguf,
    weight_specs=weight_specs,
    forward=forward,
    head=head,
    ignored_gguf=frozenset({"rope_freqs.weight"}),
)
