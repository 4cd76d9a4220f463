"""Makes the files in `fixtures/`. Not part of the test run; needs reference implementations.

python make_fixtures.py vocabularies LLAMA_CPP_MODELS
    Tokenizer metadata and expected ids from the vocabulary files of a llama.cpp checkout
    (its folder `models`, with `ggml-vocab-*.gguf`, `.inp` and `.out`). Needs `gguf`.
python make_fixtures.py llamacpp LIBLLAMA LLAMA_CPP_MODELS SMOLLM2_GGUF
    Ids from llama.cpp itself for the texts of `text_corpus.py`: the GPT-2 vocabulary under each
    pre-tokenizer, the SentencePiece vocabulary, and the SmolLM2 model. LIBLLAMA is a shared library
    with llama.cpp's C interface; `ModelParams` below has to match its version.
python make_fixtures.py transformers SMOLLM2_GGUF
    Ids from transformers for the SmolLM2 model. Needs `transformers`, `torch` and `gguf`.
python make_fixtures.py huggingface
    Ids for the committed vocabularies by transformers' GPT2Tokenizer and LlamaTokenizer with the
    tokenizer.json that it writes (without vocabulary and merges), and by SentencePiece. Needs
    `transformers` and `sentencepiece`.
python make_fixtures.py chat LLAMA_CPP_MODELS
    Chat templates from the same checkout, and how transformers renders them. Needs `transformers`.
"""

from __future__ import annotations

import ctypes
import json
import lzma
import shutil
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

FIXTURES = Path(__file__).parent / "fixtures"
VOCABULARIES = ("deepseek-coder", "gpt-2", "llama-bpe", "llama-spm", "phi-3")
TEMPLATES = (
    "HuggingFaceTB-SmolLM3-3B",
    "Qwen-Qwen2.5-7B-Instruct",
    "Qwen-Qwen3-0.6B",
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
    "GLM-4.6",
    "microsoft-Phi-3.5-mini-instruct",
    "mistralai-Mistral-Nemo-Instruct-2407",
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'Weather of a place, "now" & <here>.',
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "description": "Où?"}},
            "required": ["place"],
        },
    },
}
USER = {"role": "user", "content": "  Hello & <welcome>,\nwhat's 2+2? 'é' 😀 "}
CONVERSATIONS: dict[str, dict[str, Any]] = {
    "user": {"messages": [USER], "add_generation_prompt": True},
    "turns": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            USER,
            {"role": "assistant", "content": "<think>\nEasy.\n</think>\n\n4"},
            {"role": "user", "content": "Sure?"},
        ],
        "add_generation_prompt": True,
    },
    "closed": {"messages": [USER, {"role": "assistant", "content": "4"}], "add_generation_prompt": False},
    "tools": {"messages": [USER], "tools": [TOOL], "add_generation_prompt": True},
}


def write(name: str, value: Any) -> None:
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    FIXTURES.mkdir(exist_ok=True)
    with lzma.open(FIXTURES / f"{name}.json.xz", "wt", preset=9 | lzma.PRESET_EXTREME) as file:
        file.write(text)


def tokenizer_metadata(path: Path) -> dict[str, Any]:
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    keep = {key: field.contents() for key, field in fields.items() if key.startswith("tokenizer.ggml.")}
    return {"general.architecture": fields["general.architecture"].contents(), **keep}


def vocabularies(models: Path) -> None:
    for name in VOCABULARIES:
        path = models / f"ggml-vocab-{name}.gguf"
        texts = Path(f"{path}.inp").read_bytes().decode().split("\n__ggml_vocab_test__\n")
        lines = Path(f"{path}.out").read_text().split("\n")
        ids = [[int(id) for id in line.split()] for line in lines[: len(texts)]]
        cases = list(zip(texts, ids, strict=True))
        write(f"vocab-{name}", {"metadata": tokenizer_metadata(path), "cases": cases})


class ModelParams(ctypes.Structure):
    """`llama_model_params` of llama.cpp as of November 2026."""

    _fields_ = (
        ("pointers", ctypes.c_void_p * 2),
        ("numbers", ctypes.c_int32 * 5),
        ("more_pointers", ctypes.c_void_p * 4),
        ("vocab_only", ctypes.c_bool),
        ("flags", ctypes.c_bool * 5),
    )


class LlamaVocabulary:
    def __init__(self, library: ctypes.CDLL, path: Path) -> None:
        library.llama_model_default_params.restype = ModelParams
        library.llama_model_load_from_file.restype = ctypes.c_void_p
        library.llama_model_load_from_file.argtypes = [ctypes.c_char_p, ModelParams]
        library.llama_model_get_vocab.restype = ctypes.c_void_p
        library.llama_model_get_vocab.argtypes = [ctypes.c_void_p]
        params = library.llama_model_default_params()
        params.vocab_only = True
        model = library.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise SystemExit(f"llama.cpp doesn't load {path}")
        self._library = library
        self._vocab = ctypes.c_void_p(library.llama_model_get_vocab(model))

    def ids(self, text: str, *, parse_special: bool = False) -> list[int]:
        data = text.encode()
        room = len(data) + 16
        ids = (ctypes.c_int32 * room)()
        count = self._library.llama_tokenize(
            self._vocab,
            data,
            ctypes.c_int32(len(data)),
            ids,
            ctypes.c_int32(room),
            ctypes.c_bool(False),
            ctypes.c_bool(parse_special),
        )
        assert count >= 0
        return list(ids[:count])


def with_pre(gguf: bytes, pre: str) -> bytes:
    """The same file with another value of `tokenizer.ggml.pre`."""
    key = b"tokenizer.ggml.pre"
    start = gguf.index(struct.pack("<Q", len(key)) + key) + 8 + len(key)
    _, length = struct.unpack_from("<IQ", gguf, start)
    name = pre.encode()
    return gguf[: start + 4] + struct.pack("<Q", len(name)) + name + gguf[start + 12 + length :]


def llamacpp(libllama: Path, models: Path, smollm2: Path) -> None:
    from text_corpus import NASTY

    from ostinato.text.pretokenizers import PRE_TOKENIZERS

    library = ctypes.CDLL(str(libllama))
    gpt2 = (models / "ggml-vocab-gpt-2.gguf").read_bytes()
    one_of_each = {pre: name for name, pre in reversed(PRE_TOKENIZERS.items())}
    by_pre = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in sorted(one_of_each.values()):
            path = Path(folder) / f"{name}.gguf"
            path.write_bytes(with_pre(gpt2, name))
            vocabulary = LlamaVocabulary(library, path)
            by_pre[name] = [vocabulary.ids(text) for text in NASTY]
            path.unlink()
    write("llamacpp-pre", by_pre)
    spm = LlamaVocabulary(library, models / "ggml-vocab-llama-spm.gguf")
    write("llamacpp-spm", [[spm.ids(text), spm.ids(text, parse_special=True)] for text in NASTY])
    model = LlamaVocabulary(library, smollm2)
    write("llamacpp-smollm2", [[model.ids(text), model.ids(text, parse_special=True)] for text in NASTY])


def transformers(smollm2: Path) -> None:
    from text_corpus import NASTY
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(smollm2.parent), gguf_file=smollm2.name)
    # GGUF names the pre-tokenizer, which transformers doesn't read; this one is from the model's
    # own tokenizer.json.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    write(
        "transformers-smollm2",
        [tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids for text in NASTY],
    )


def huggingface() -> None:
    from hf_support import config_of, model_file, write_folder
    from sentencepiece import SentencePieceProcessor
    from text_corpus import NASTY
    from transformers import AutoTokenizer, GPT2Tokenizer

    metadata = {}
    for name in ("gpt-2", "llama-spm"):
        with lzma.open(FIXTURES / f"vocab-{name}.json.xz") as file:
            metadata[name] = json.load(file)["metadata"]
    with tempfile.TemporaryDirectory() as temporary:
        config = {"tokenizer_class": "LlamaTokenizer", **config_of(metadata["llama-spm"])}
        folder = write_folder(Path(temporary), tokenizer_config=config, config={"model_type": "llama"})
        path = folder / "tokenizer.model"
        path.write_bytes(model_file(metadata["llama-spm"]))
        processor = SentencePieceProcessor(model_file=str(path))
        write("sentencepiece-llama-spm", [processor.encode(text) for text in NASTY])
        llama = AutoTokenizer.from_pretrained(folder)
    vocab = {text: id for id, text in enumerate(metadata["gpt-2"]["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["gpt-2"]["tokenizer.ggml.merges"]]
    made = {"llama-spm": llama, "gpt-2": GPT2Tokenizer(vocab=vocab, merges=merges)}
    goldens = {}
    for name, tokenizer in made.items():
        description = json.loads(tokenizer.backend_tokenizer.to_str())
        del description["model"]["vocab"], description["model"]["merges"]
        ids = [tokenizer.encode(text, add_special_tokens=False) for text in NASTY]
        goldens[name] = {"description": description, "ids": ids}
    write("transformers-folders", goldens)


def chat(models: Path) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    folder = FIXTURES / "templates"
    folder.mkdir(parents=True, exist_ok=True)
    goldens: dict[str, dict[str, str]] = {}
    for name in TEMPLATES:
        path = models / "templates" / f"{name}.jinja"
        shutil.copyfile(path, folder / path.name)
        goldens[name] = {}
        for title, case in CONVERSATIONS.items():
            rendered, _ = render_jinja_template(
                [case["messages"]],
                tools=case.get("tools"),
                chat_template=path.read_text(),
                add_generation_prompt=case["add_generation_prompt"],
                bos_token="<s>",
                eos_token="</s>",
            )
            goldens[name][title] = rendered[0]
    text = json.dumps({"conversations": CONVERSATIONS, "rendered": goldens}, ensure_ascii=False, indent=1)
    (FIXTURES / "chat.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    commands = {
        "vocabularies": vocabularies,
        "llamacpp": llamacpp,
        "transformers": transformers,
        "huggingface": huggingface,
        "chat": chat,
    }
    commands[sys.argv[1]](*map(Path, sys.argv[2:]))
