"""Llama and its kin: Llama 2 and 3, SmolLM2, Mistral, TinyLlama (Touvron et al. 2023, arXiv:2302.13971).

Pre-norm blocks, grouped KV heads, SwiGLU, rotary embedding over the whole head, no biases unless the file
has them, a head of its own or the embedding table used twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ostinato.formats.gguf import GgufFile
from ostinato.formats.safetensors import Checkpoint
from ostinato.ir import Tensor, embedding, linear, rms_norm, rope, swiglu
from ostinato.models.checks import eps_of, head_dim_of, heads_of, in_range, layers_of, one_of, require
from ostinato.models.contract import Family, KvView, LayerKv, RowOrder, StepInputs, Weights, WeightSpec
from ostinato.models.gguf_rope import rope_from_gguf, rope_to_gguf
from ostinato.models.hf_rope import rope_from_hf
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
        require(meta, "llama.expert_count", meta.integer("llama.expert_count", 0), 0)
        heads, kv_heads = heads_of(meta, "llama.attention.head_count", "llama.attention.head_count_kv")
        dim = in_range(meta, "llama.embedding_length")
        head_dim = head_dim_of(meta, "llama.attention.key_length", default=dim // heads)
        one_of(meta, "llama.attention.value_length", head_dim, default=head_dim)
        window = in_range(meta, "llama.attention.sliding_window", low=0, default=0)
        return cls(
            vocab_size=len(meta.texts("tokenizer.ggml.tokens")),
            context_length=in_range(meta, "llama.context_length"),
            n_layers=layers_of(meta, "llama.block_count", tensors),
            dim=dim,
            ffn_dim=in_range(meta, "llama.feed_forward_length"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=eps_of(meta, "llama.attention.layer_norm_rms_epsilon"),
            rope=rope_from_gguf(file, "llama", head_dim),
            window=window or None,
            tied="output.weight" not in tensors,
            qkv_bias="blk.0.attn_q.bias" in tensors,
            output_bias="blk.0.attn_output.bias" in tensors,
            ffn_bias="blk.0.ffn_gate.bias" in tensors,
        )

    @classmethod
    def from_hf(cls, checkpoint: Checkpoint) -> Config:
        """Raises ModelFormatError for missing or absurd numbers, UnsupportedModel for another activation."""
        config = checkpoint.config
        require(config, "hidden_act", config.text("hidden_act", "silu"), "silu")
        dim = in_range(config, "hidden_size")
        heads, kv_heads = heads_of(config, "num_attention_heads", "num_key_value_heads")
        head_dim = head_dim_of(config, "head_dim", default=dim // heads)
        window = in_range(config, "sliding_window", low=0, default=0)
        attention_bias = config.flag("attention_bias", False)
        return cls(
            vocab_size=in_range(config, "vocab_size"),
            context_length=in_range(config, "max_position_embeddings"),
            n_layers=layers_of(config, "num_hidden_layers", checkpoint.tensors),
            dim=dim,
            ffn_dim=in_range(config, "intermediate_size"),
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            norm_eps=eps_of(config, "rms_norm_eps", 1e-6),
            rope=rope_from_hf(config, head_dim),
            window=window or None,
            tied=config.flag("tie_word_embeddings", False),
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            ffn_bias=config.flag("mlp_bias", False),
        )


def weight_specs(config: Config) -> Mapping[str, WeightSpec]:
    """Canonical name → shape and where files hold it; GGUF's Q and K rows are in an order of their own."""
    c = config
    q_dim, kv_dim = c.heads * c.head_dim, c.kv_heads * c.head_dim
    q_rows, k_rows = _half_split_rows(c.heads, c), _half_split_rows(c.kv_heads, c)
    specs = {"embedding": WeightSpec((c.vocab_size, c.dim), "token_embd.weight", "model.embed_tokens.weight")}
    for i in range(c.n_layers):
        gguf, hf = f"blk.{i}", f"model.layers.{i}"
        for name, gguf_norm, hf_norm in (
            ("attention_norm", "attn_norm", "input_layernorm"),
            ("ffn_norm", "ffn_norm", "post_attention_layernorm"),
        ):
            specs[f"{i}.{name}"] = WeightSpec(
                (c.dim,), f"{gguf}.{gguf_norm}.weight", f"{hf}.{hf_norm}.weight", i
            )
        matrices: tuple[tuple[str, tuple[int, int], str, str, bool, RowOrder | None], ...] = (
            ("q", (q_dim, c.dim), "attn_q", "self_attn.q_proj", c.qkv_bias, q_rows),
            ("k", (kv_dim, c.dim), "attn_k", "self_attn.k_proj", c.qkv_bias, k_rows),
            ("v", (kv_dim, c.dim), "attn_v", "self_attn.v_proj", c.qkv_bias, None),
            ("o", (c.dim, q_dim), "attn_output", "self_attn.o_proj", c.output_bias, None),
            ("gate", (c.ffn_dim, c.dim), "ffn_gate", "mlp.gate_proj", c.ffn_bias, None),
            ("up", (c.ffn_dim, c.dim), "ffn_up", "mlp.up_proj", c.ffn_bias, None),
            ("down", (c.dim, c.ffn_dim), "ffn_down", "mlp.down_proj", c.ffn_bias, None),
        )
        for name, shape, gguf_name, hf_name, biased, order in matrices:
            specs[f"{i}.{name}"] = WeightSpec(
                shape, f"{gguf}.{gguf_name}.weight", f"{hf}.{hf_name}.weight", i, order
            )
            if biased:
                specs[f"{i}.{name}.bias"] = WeightSpec(
                    shape[:1], f"{gguf}.{gguf_name}.bias", f"{hf}.{hf_name}.bias", i, order
                )
    specs["norm"] = WeightSpec((c.dim,), "output_norm.weight", "model.norm.weight")
    if not c.tied:
        specs["head"] = WeightSpec((c.vocab_size, c.dim), "output.weight", "lm_head.weight")
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


def to_gguf(config: Config) -> Mapping[str, str | int | float]:
    """The architecture's metadata; rope factors are written as a tensor (`models.gguf_rope`)."""
    c = config
    return {
        "general.architecture": "llama",
        "llama.context_length": c.context_length,
        "llama.embedding_length": c.dim,
        "llama.block_count": c.n_layers,
        "llama.feed_forward_length": c.ffn_dim,
        "llama.vocab_size": c.vocab_size,
        "llama.attention.head_count": c.heads,
        "llama.attention.head_count_kv": c.kv_heads,
        "llama.attention.key_length": c.head_dim,
        "llama.attention.value_length": c.head_dim,
        "llama.attention.layer_norm_rms_epsilon": c.norm_eps,
        **({"llama.attention.sliding_window": c.window} if c.window else {}),
        **rope_to_gguf(c.rope, "llama"),
    }


def _half_split_rows(heads: int, config: Config) -> RowOrder:
    """GGUF's llama files interleave the rotated rows of each head, so that pairs are (2i, 2i+1)."""
    head_dim, rot = config.head_dim, config.rope.rot

    def rows() -> npt.NDArray[np.intp]:
        within = np.concatenate([np.arange(0, rot, 2), np.arange(1, rot, 2), np.arange(rot, head_dim)])
        order: npt.NDArray[np.intp] = (np.arange(heads)[:, None] * head_dim + within).reshape(-1)
        return order

    return rows


def _ignored(config: Config, name: str) -> bool:
    """Rope scaling and rope tables, which the Config holds, and the second copy of a tied head."""
    buffers = name == "rope_freqs.weight" or name.endswith(".rotary_emb.inv_freq")
    return buffers or (config.tied and name == "lm_head.weight")


LLAMA = Family(
    name="llama",
    gguf_architectures=("llama",),
    hf_architectures=("LlamaForCausalLM", "MistralForCausalLM"),
    from_gguf=Config.from_gguf,
    from_hf=Config.from_hf,
    weight_specs=weight_specs,
    forward=forward,
    head=head,
    to_gguf=to_gguf,
    ignored=_ignored,
)
