"""Phi-1, 1.5 and 2 (Li et al. 2023, arXiv:2309.05463).

Attention and MLP side by side on one LayerNorm, biases everywhere, rotary embedding of a part of each head,
GELU in its tanh approximation, a head of its own with bias.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostinato.formats.gguf import GgufFile
from ostinato.formats.safetensors import Checkpoint
from ostinato.ir import Tensor, embedding, gelu_tanh, layer_norm, linear, rope
from ostinato.models.checks import eps_of, head_dim_of, heads_of, in_range, layers_of, one_of, require
from ostinato.models.contract import Family, KvView, LayerKv, RowOrder, StepInputs, Weights, WeightSpec
from ostinato.models.gguf_rope import rope_from_gguf, rope_to_gguf
from ostinato.models.hf_rope import rope_from_hf
from ostinato.models.rope import RopeSpec


@dataclass(frozen=True)
class Config:
    """Every number that shapes the graph. `fused_qkv`: the file holds Q, K and V of a layer as one tensor."""

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
    fused_qkv: bool

    @property
    def kv(self) -> tuple[LayerKv, ...]:
        return (LayerKv(self.kv_heads, self.head_dim, self.head_dim),) * self.n_layers

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        return (self.rope,)

    @classmethod
    def from_gguf(cls, file: GgufFile) -> Config:
        """Raises ModelFormatError for missing or absurd numbers."""
        meta = file.metadata
        dim = in_range(meta, "phi2.embedding_length")
        heads, kv_heads = heads_of(meta, "phi2.attention.head_count", "phi2.attention.head_count_kv")
        head_dim = head_dim_of(meta, "phi2.attention.key_length", default=dim // heads)
        one_of(meta, "phi2.attention.value_length", head_dim, default=head_dim)
        return cls(
            vocab_size=len(meta.texts("tokenizer.ggml.tokens")),
            context_length=in_range(meta, "phi2.context_length"),
            n_layers=layers_of(meta, "phi2.block_count", file.tensors),
            dim=dim,
            ffn_dim=in_range(meta, "phi2.feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=eps_of(meta, "phi2.attention.layer_norm_epsilon"),
            rope=rope_from_gguf(file, "phi2", head_dim),
            fused_qkv="blk.0.attn_qkv.weight" in file.tensors,
        )

    @classmethod
    def from_hf(cls, checkpoint: Checkpoint) -> Config:
        """Raises ModelFormatError for missing or absurd numbers, UnsupportedModel for other variants."""
        config = checkpoint.config
        require(config, "hidden_act", config.text("hidden_act", "gelu_new"), "gelu_new")
        require(config, "qk_layernorm", config.flag("qk_layernorm", False), False)
        require(config, "tie_word_embeddings", config.flag("tie_word_embeddings", False), False)
        dim = in_range(config, "hidden_size")
        heads, kv_heads = heads_of(config, "num_attention_heads", "num_key_value_heads")
        head_dim = head_dim_of(config, "head_dim", default=dim // heads)
        return cls(
            vocab_size=in_range(config, "vocab_size"),
            context_length=in_range(config, "max_position_embeddings"),
            n_layers=layers_of(config, "num_hidden_layers", checkpoint.tensors),
            dim=dim,
            ffn_dim=in_range(config, "intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=eps_of(config, "layer_norm_eps", 1e-5),
            rope=rope_from_hf(config, head_dim, default_part=0.5),
            fused_qkv=False,
        )


def weight_specs(config: Config) -> Mapping[str, WeightSpec]:
    """Canonical name → shape and where files hold it."""
    c = config
    q_dim, kv_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim
    specs = {"embedding": WeightSpec((c.vocab_size, c.dim), "token_embd.weight", "model.embed_tokens.weight")}

    def add(
        name: str, shape: tuple[int, int], gguf: str, hf: str, layer: int | None, first: int | None
    ) -> None:
        """A matrix and its bias; `first` is its first row in a fused tensor of the layer."""
        rows, fused = (None, None) if first is None else (_rows(first, shape[0]), q_dim + 2 * kv_dim)
        for kind, extent in (("weight", shape), ("bias", shape[:1])):
            file_shape = None if fused is None else (fused, *extent[1:])
            canonical = name if kind == "weight" else f"{name}.bias"
            specs[canonical] = WeightSpec(extent, f"{gguf}.{kind}", f"{hf}.{kind}", layer, rows, file_shape)

    for i in range(c.n_layers):
        hf = f"model.layers.{i}"
        for kind in ("weight", "bias"):
            specs[f"{i}.norm.{kind}"] = WeightSpec(
                (c.dim,), f"blk.{i}.attn_norm.{kind}", f"{hf}.input_layernorm.{kind}", i
            )
        for name, shape, first in (
            ("q", (q_dim, c.dim), 0),
            ("k", (kv_dim, c.dim), q_dim),
            ("v", (kv_dim, c.dim), q_dim + kv_dim),
        ):
            gguf = f"blk.{i}.attn_{'qkv' if c.fused_qkv else name}"
            add(f"{i}.{name}", shape, gguf, f"{hf}.self_attn.{name}_proj", i, first if c.fused_qkv else None)
        add(f"{i}.o", (c.dim, q_dim), f"blk.{i}.attn_output", f"{hf}.self_attn.dense", i, None)
        add(f"{i}.up", (c.ffn_dim, c.dim), f"blk.{i}.ffn_up", f"{hf}.mlp.fc1", i, None)
        add(f"{i}.down", (c.dim, c.ffn_dim), f"blk.{i}.ffn_down", f"{hf}.mlp.fc2", i, None)
    for kind in ("weight", "bias"):
        specs[f"norm.{kind}"] = WeightSpec((c.dim,), f"output_norm.{kind}", f"model.final_layernorm.{kind}")
    add("head", (c.vocab_size, c.dim), "output", "lm_head", None, None)
    return specs


def block(config: Config, weights: Weights, i: int, x: Tensor, step: StepInputs, kv: KvView) -> Tensor:
    """One layer: x `[rows, dim]` → `[rows, dim]`."""
    c = config
    rows = x.shape[0]

    def project(name: str, x: Tensor) -> Tensor:
        return linear(x, weights[f"{i}.{name}"], weights[f"{i}.{name}.bias"])

    h = layer_norm(x, weights[f"{i}.norm.weight"], weights[f"{i}.norm.bias"], c.norm_eps)  # [rows, dim]
    q = project("q", h).reshape(rows, c.heads, c.head_dim)  # [rows, heads, head_dim]
    k = project("k", h).reshape(rows, c.kv_heads, c.head_dim)  # [rows, kv_heads, head_dim]
    v = project("v", h).reshape(rows, c.kv_heads, c.head_dim)  # [rows, kv_heads, head_dim]
    cos, sin = step.rope_cos[0], step.rope_sin[0]  # [rows, rot/2]
    kv.append(rope(k, cos, sin), v)
    a = kv.attend(rope(q, cos, sin), window=None, scale=c.head_dim**-0.5)  # [rows, heads · head_dim]
    f = gelu_tanh(project("up", h))  # [rows, ffn_dim]
    return x + project("o", a) + project("down", f)  # [rows, dim]


def forward(config: Config, weights: Weights, step: StepInputs, kv: Sequence[KvView]) -> Tensor:
    """The final normed hidden rows: `[rows, dim]`."""
    x = embedding(step.token_ids, weights["embedding"])  # [rows, dim]
    for i, layer in enumerate(kv):
        x = block(config, weights, i, x, step, layer)
    return layer_norm(x, weights["norm.weight"], weights["norm.bias"], config.norm_eps)


def head(config: Config, weights: Weights, hidden: Tensor) -> Tensor:
    """Logits: hidden `[n, dim]` → `[n, vocab]`."""
    return linear(hidden, weights["head"], weights["head.bias"])


def to_gguf(config: Config) -> Mapping[str, str | int | float]:
    """The architecture's metadata."""
    c = config
    return {
        "general.architecture": "phi2",
        "phi2.context_length": c.context_length,
        "phi2.embedding_length": c.dim,
        "phi2.block_count": c.n_layers,
        "phi2.feed_forward_length": c.ffn_dim,
        "phi2.attention.head_count": c.heads,
        "phi2.attention.head_count_kv": c.kv_heads,
        "phi2.attention.layer_norm_epsilon": c.norm_eps,
        **rope_to_gguf(c.rope, "phi2"),
    }


def _rows(first: int, count: int) -> RowOrder:
    def rows() -> npt.NDArray[np.intp]:
        return np.arange(first, first + count)

    return rows


PHI = Family(
    name="phi",
    gguf_architectures=("phi2",),
    hf_architectures=("PhiForCausalLM",),
    from_gguf=Config.from_gguf,
    from_hf=Config.from_hf,
    weight_specs=weight_specs,
    forward=forward,
    head=head,
    to_gguf=to_gguf,
)
