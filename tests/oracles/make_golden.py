"""Makes the golden fixtures from Hugging Face transformers in float32 on torch's CPU.

    python tests/oracles/make_golden.py tiny                 # random-weight Llamas: GGUF files and logits
    python tests/oracles/make_golden.py smollm2 MODEL.gguf   # logits and greedy tokens of the real model

Needs torch 2.13, transformers 5 and gguf; the tests that read the fixtures need none of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import numpy as np
import tokenizers
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
)

FIXTURES = Path(__file__).parent.parent / "fixtures"
PROMPTS = [
    "Once upon a time, in a small village by the sea,",
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "In 1969, the first humans",
    "Water boils at",
    "She opened the old wooden door and",
    "The three primary colours are",
    "import numpy as np\n\n",
    "Q: What is 12 plus 30?\nA:",
    "Dear Sir or Madam,\n\nI am writing to",
    "Liberté, égalité,",
]
LOGIT_TEXT = (
    "The sea was calm that morning. An old fisherman walked down to the harbour with a lantern in his hand, "
    '1234 steps from his door, and said: "Today the wind will turn."\n\n'
    "Nobody believed him, naïve as they were."
)


def byte_characters() -> list[str]:
    """GPT-2's printable stand-in for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


TOKENS = [*byte_characters(), "<|endoftext|>", "<|im_start|>", "<|im_end|>", "he"]
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOP = 64
DECODE_STEPS = 8

_BASE = {
    "vocab_size": 260,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 256,
}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
TINY = {
    "grouped": LlamaConfig(**_BASE, rope_parameters=_ROPE),
    "tied": LlamaConfig(**_BASE | {"tie_word_embeddings": True}, rope_parameters=_ROPE),
    "llama3": LlamaConfig(
        **_BASE | {"num_key_value_heads": 4},
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16,
        },
    ),
    "linear": LlamaConfig(**_BASE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}),
    "window": MistralConfig(**_BASE, sliding_window=8, rope_parameters=_ROPE),
    "bias": LlamaConfig(**_BASE, attention_bias=True, mlp_bias=True, head_dim=16, rope_parameters=_ROPE),
}


TINY_PHI = PhiConfig(
    **_BASE, partial_rotary_factor=0.5, layer_norm_eps=1e-5,
    rope_parameters={**_ROPE, "partial_rotary_factor": 0.5},
)  # fmt: skip


def make_tiny() -> None:
    make_tiny_llamas()
    torch.manual_seed(100)
    TINY_PHI._attn_implementation = "eager"
    model = spread(PhiForCausalLM(TINY_PHI).float().eval())
    write_logits(model, "tiny-phi")
    write_phi_gguf(model, FIXTURES / "tiny-phi.gguf")
    write_folder(model, "tiny-phi")


def write_folder(model: torch.nn.Module, name: str) -> None:
    """The same weights as Hugging Face's own files."""
    folder = FIXTURES / name
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)
    vocabulary = {token: i for i, token in enumerate(TOKENS)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=[("h", "e")]))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence(
        [
            tokenizers.pre_tokenizers.Digits(individual_digits=True),
            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(TOKENS[256:259])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": TOKENS[256], "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


def spread(model: torch.nn.Module) -> torch.nn.Module:
    """Weights large enough that every part of the block moves the logits."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name and name.endswith("weight")
            parameter.normal_(1.0 if is_norm else 0.0, 0.15 if parameter.ndim == 2 else 0.3)
    return model


@torch.no_grad()
def write_logits(model: torch.nn.Module, name: str) -> None:
    tokens = torch.randint(0, 256, (1, 40))
    logits = model(tokens).logits[0].numpy()
    np.savez_compressed(FIXTURES / f"{name}.npz", tokens=tokens[0].numpy(), logits=logits)
    print(name, logits.shape, f"std {logits.std():.2f}")


def write_phi_gguf(model: torch.nn.Module, path: Path) -> None:
    """The model as llama.cpp's converter writes it, Q, K and V apart."""
    config = model.config
    writer = gguf.GGUFWriter(path, "phi2")
    writer.add_name(path.stem)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_eps(config.layer_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads // 2)
    add_tokenizer(writer)
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
        "input_layernorm": "attn_norm",
    }  # fmt: skip
    top = {"model.embed_tokens": "token_embd", "model.final_layernorm": "output_norm", "lm_head": "output"}
    for name, parameter in model.named_parameters():
        module, kind = name.rsplit(".", 1)
        if module not in top:
            _, _, layer, rest = module.split(".", 3)
        target = top.get(module) or f"blk.{layer}.{names[rest]}"
        writer.add_tensor(f"{target}.{kind}", parameter.detach().numpy())
    finish(writer)


def make_tiny_llamas() -> None:
    for seed, (name, config) in enumerate(TINY.items()):
        torch.manual_seed(seed)
        config._attn_implementation = "eager"
        model = (
            (MistralForCausalLM if isinstance(config, MistralConfig) else LlamaForCausalLM)(config)
            .float()
            .eval()
        )
        write_logits(spread(model), f"tiny-llama-{name}")
        write_gguf(model, config, FIXTURES / f"tiny-llama-{name}.gguf")
        if name in ("grouped", "llama3"):
            write_folder(model, f"tiny-llama-{name}")


def write_gguf(model: torch.nn.Module, config: LlamaConfig | MistralConfig, path: Path) -> None:
    """The model as llama.cpp's converter writes it: rotated rows interleaved, llama3 scaling as a tensor."""
    writer = gguf.GGUFWriter(path, "llama")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_name(path.stem)
    writer.add_license("apache-2.0")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "llama3":
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(0, head_dim, 2) / head_dim)
        writer.add_tensor("rope_freqs.weight", (plain / model.model.rotary_emb.inv_freq).numpy())
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    add_tokenizer(writer)
    names = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    top = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
           "lm_head.weight": "output.weight"}  # fmt: skip
    for name, parameter in model.named_parameters():
        data = parameter.detach().numpy()
        if name in top:
            writer.add_tensor(top[name], data)
            continue
        _, _, layer, rest = name.split(".", 3)
        module, kind = rest.rsplit(".", 1)
        if module.endswith(("q_proj", "k_proj")):
            data = interleave(data, head_dim)
        writer.add_tensor(f"blk.{layer}.{names[module]}.{kind}", data)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def interleave(rows: np.ndarray, head_dim: int) -> np.ndarray:
    """Rows of each head from halves (i, i + head_dim/2) to pairs (2i, 2i + 1)."""
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """A byte-level tokenizer of 256 bytes, one merge, and three control tokens; a ChatML template."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    writer.add_token_types([1] * 256 + [3] * 3 + [1])
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)


def make_smollm2(path: Path) -> None:
    torch.set_grad_enabled(False)
    source = {"pretrained_model_name_or_path": str(path.parent), "gguf_file": path.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32).eval()

    greedy = []
    for prompt in PROMPTS:
        prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
        ids = likeliest(model, prompt_ids, 64)
        text = tokenizer.decode(ids)
        greedy.append({"prompt": prompt, "prompt_ids": prompt_ids, "ids": ids, "text": text})
        print(repr(prompt), "->", repr(text[:70]))
    (FIXTURES / "smollm2-greedy.json").write_text(json.dumps(greedy, indent=1, ensure_ascii=False) + "\n")

    prefill = tokenizer(LOGIT_TEXT, add_special_tokens=False)["input_ids"]
    tokens = prefill + likeliest(model, prefill, DECODE_STEPS)
    logits = model(torch.tensor([tokens])).logits[0]  # [positions, vocab]
    values, indices = logits.topk(TOP, dim=-1)
    np.savez_compressed(
        FIXTURES / "smollm2-logits.npz",
        tokens=np.asarray(tokens), prefill=len(prefill), top_ids=indices.numpy().astype(np.int32),
        top_logits=values.numpy(), logsumexp=logits.logsumexp(-1).numpy(),
    )  # fmt: skip
    print("logits", tuple(logits.shape))


def likeliest(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    """The argmax continuation, end tokens included: `generate` would stop at them or forbid them."""
    ids: list[int] = []
    state = model(torch.tensor([prompt]), use_cache=True)
    while True:
        ids.append(int(state.logits[0, -1].argmax()))
        if len(ids) == count:
            return ids
        state = model(torch.tensor([ids[-1:]]), past_key_values=state.past_key_values, use_cache=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["tiny"]:
        make_tiny()
    elif sys.argv[1:2] == ["smollm2"] and len(sys.argv) == 3:
        make_smollm2(Path(sys.argv[2]).resolve())
    else:
        sys.exit(__doc__)
