"""llama.cpp on request: `peers.py` starts it with a Python that has llama-cpp-python; it speaks JSON lines.

The first line is the setup, the arguments of `Llama`. Then:

{"do": "decode", "depth": 128, "tokens": 64} → {"seconds": …}: at that depth, one token at a time
{"do": "prefill", "tokens": 512, "depth": 0} → {"seconds": …}: a prompt in batches of up to 512
{"do": "rows", "rows": 8, "tokens": 64}      → {"seconds": …}: so many tokens, of 8 sequences at once
{"do": "flags"}                              → {"system": …, "version": …}

The KV cache is filled with what real tokens give; it is not filled again where it already has the depth.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time

import llama_cpp
from llama_cpp import llama_cpp as c

BATCH = 512


class Llama:
    """A model and a context on `threads` threads."""

    def __init__(
        self, path: str, threads: int, context: int, flash: bool, kv: str, sequences: int = 1
    ) -> None:
        c.llama_backend_init()
        self._quiet = c.llama_log_callback(lambda level, text, data: None)
        c.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self.model = c.llama_model_load_from_file(path.encode(), c.llama_model_default_params())
        assert self.model, f"llama.cpp can't load {path}"
        options = c.llama_context_default_params()
        options.n_ctx = context * sequences
        options.n_seq_max = sequences
        options.n_batch = options.n_ubatch = BATCH
        options.n_threads = options.n_threads_batch = threads
        options.flash_attn_type = 1 if flash else 0
        options.type_k = options.type_v = {"f16": c.GGML_TYPE_F16, "f32": c.GGML_TYPE_F32}[kv]
        self.context = c.llama_init_from_model(self.model, options)
        assert self.context, "llama.cpp makes no context"
        self.vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))
        self.depth = 0

    def ids(self, count: int, seed: int) -> ctypes.Array[ctypes.c_int32]:
        values = [(seed * 7919 + i * 104729) % (self.vocab - 64) + 32 for i in range(count)]
        return (c.llama_token * count)(*values)

    def run(self, ids: ctypes.Array[ctypes.c_int32]) -> None:
        code = c.llama_decode(self.context, c.llama_batch_get_one(ids, len(ids)))
        assert code == 0, f"llama_decode: {code}"
        self.depth += len(ids)

    def go_to(self, depth: int) -> None:
        """A cache of exactly `depth` positions."""
        if self.depth > depth:
            assert c.llama_memory_seq_rm(c.llama_get_memory(self.context), 0, depth, -1)
            self.depth = depth
        while self.depth < depth:
            self.run(self.ids(min(BATCH, depth - self.depth), self.depth))

    def decode(self, depth: int, tokens: int) -> float:
        self.go_to(depth)
        singles = [self.ids(1, 31 + i) for i in range(tokens)]
        self.run(self.ids(1, 5))
        c.llama_synchronize(self.context)
        start = time.perf_counter()
        for ids in singles:
            self.run(ids)
            c.llama_get_logits_ith(self.context, -1)
        return time.perf_counter() - start

    def decode_rows(self, rows: int, tokens: int) -> float:
        """`tokens / rows` steps, each of a token for every sequence, with its logits."""
        c.llama_memory_clear(c.llama_get_memory(self.context), False)
        self.depth = 0
        batch = c.llama_batch_init(rows, 0, 1)
        steps = tokens // rows
        for step in range(steps + 1):
            if step == 1:  # the first one is not counted
                c.llama_synchronize(self.context)
                start = time.perf_counter()
            batch.n_tokens = rows
            for r, token in enumerate(self.ids(rows, 31 + step)):
                batch.token[r], batch.pos[r], batch.logits[r] = token, step, 1
                batch.n_seq_id[r], batch.seq_id[r][0] = 1, r
            code = c.llama_decode(self.context, batch)
            assert code == 0, f"llama_decode: {code}"
            c.llama_get_logits_ith(self.context, -1)
        seconds = time.perf_counter() - start
        c.llama_batch_free(batch)
        c.llama_memory_clear(c.llama_get_memory(self.context), False)
        return seconds

    def prefill(self, depth: int, tokens: int) -> float:
        self.go_to(depth)
        pieces = [self.ids(min(BATCH, tokens - at), 3 + at) for at in range(0, tokens, BATCH)]
        c.llama_synchronize(self.context)
        start = time.perf_counter()
        for piece in pieces:
            self.run(piece)
        c.llama_get_logits_ith(self.context, -1)
        return time.perf_counter() - start


def main() -> None:
    llama = Llama(**json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, object]
        if asked["do"] == "flags":
            answer = {"system": c.llama_print_system_info().decode(), "version": llama_cpp.__version__}
        elif asked["do"] == "rows":
            answer = {"seconds": llama.decode_rows(asked["rows"], asked["tokens"])}
        else:
            work = llama.decode if asked["do"] == "decode" else llama.prefill
            answer = {"seconds": work(asked["depth"], asked["tokens"])}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
