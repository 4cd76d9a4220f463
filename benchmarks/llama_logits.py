"""llama.cpp's logits: started by accuracy.py with a Python that has llama-cpp-python.

Reads one JSON line {"path": …, "threads": …, "windows": [[ids], …], "out": …} and writes float32 `[windows,
positions, vocab]` to the file `out`, each window from an empty cache.
"""

from __future__ import annotations

import json
import sys

import numpy as np
from llama_cpp import llama_cpp as c


def main() -> None:
    asked = json.loads(sys.stdin.readline())
    windows = asked["windows"]
    count = len(windows[0])
    c.llama_backend_init()
    model = c.llama_model_load_from_file(asked["path"].encode(), c.llama_model_default_params())
    options = c.llama_context_default_params()
    options.n_ctx = options.n_batch = options.n_ubatch = count
    options.n_threads = options.n_threads_batch = asked["threads"]
    context = c.llama_init_from_model(model, options)
    vocab = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))
    out = np.lib.format.open_memmap(asked["out"], "w+", np.float32, (len(windows), count, vocab))
    for w, ids in enumerate(windows):
        c.llama_memory_clear(c.llama_get_memory(context), True)
        batch = c.llama_batch_init(count, 0, 1)
        batch.n_tokens = count
        for i, token in enumerate(ids):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
            batch.seq_id[i][0] = 0
        assert c.llama_decode(context, batch) == 0
        for i in range(count):
            row = c.llama_get_logits_ith(context, i)
            out[w, i] = np.ctypeslib.as_array(row, (vocab,))
        c.llama_batch_free(batch)
    out.flush()


if __name__ == "__main__":
    main()
