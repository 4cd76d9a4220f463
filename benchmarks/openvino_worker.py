"""OpenVINO GenAI on request: `peers.py` starts it with a Python that has openvino-genai; JSON lines.

The first line is the setup, a GGUF file's path and the threads. Then:

{"do": "decode", "tokens": 64}   → {"seconds": …}: one token at a time, from an empty cache
{"do": "prefill", "tokens": 512} → {"seconds": …}: a prompt, to its first token
{"do": "flags"}                  → {"version": …}
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import openvino
import openvino_genai


class Pipeline:
    """A model on `threads` threads."""

    def __init__(self, path: str, threads: int) -> None:
        self.pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
        self.turn = 0

    def run(self, prompt: int, tokens: int) -> float:
        """Seconds to `tokens` tokens after a prompt of `prompt`."""
        self.turn += 1  # a prompt that begins like an earlier one would not be computed again
        ids = np.array([[((at + self.turn) * 104729 + 7919) % 49000 + 32 for at in range(prompt)]], np.int64)
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = tokens, True, False
        inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        start = time.perf_counter()
        result = self.pipeline.generate(inputs, config)
        seconds = time.perf_counter() - start
        assert len(result.tokens[0]) == tokens
        return seconds


def main() -> None:
    pipeline = Pipeline(**json.loads(sys.stdin.readline()))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, object]
        if asked["do"] == "flags":
            answer = {"version": openvino_genai.__version__}
        elif asked["do"] == "prefill":
            answer = {"seconds": pipeline.run(asked["tokens"], 1)}
        else:  # what the first token costs is not counted
            first = pipeline.run(1, 1)
            answer = {"seconds": pipeline.run(1, asked["tokens"] + 1) - first}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
