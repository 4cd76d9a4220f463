"""How far answers are from float32: this engine's `cpu` device and llama.cpp, on one English text.

    python benchmarks/accuracy.py MODEL.gguf … [--llama-python PYTHON] [--windows 6] [--kv f16 q8_0]

The yardstick is the reference device: the same file's weights in float32, activations never rounded. Windows
of 512 tokens of tests/fixtures/alice.txt, each from an empty cache. KL is the mean of KL(reference ‖ engine)
over all positions; top-1 how often the likeliest token is the same; perplexity that of the text. With several
KV types each later one is compared with the first as well.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ostinato.decode.forward import forward_with_kv_context
from ostinato.decode.kv_cache import KvCache
from ostinato.decode.want import All
from ostinato.devices import register_defaults
from ostinato.engine.llm import KV_DTYPES
from ostinato.engine.opened import open_model
from ostinato.ir import encoding as enc
from ostinato.models.contract import Model
from ostinato.runtime.context import InferenceContext

WINDOW = 512
TEXT = Path(__file__).parent.parent / "tests" / "fixtures" / "alice.txt"

Logits = npt.NDArray[np.float32]


@dataclass
class Distance:
    """Sums over positions of how one engine differs from the reference."""

    kl: float = 0.0
    same: int = 0
    nll: float = 0.0
    nll_reference: float = 0.0
    positions: int = 0
    targets: int = 0

    def add(self, reference: Logits, engine: Logits, ids: Sequence[int]) -> None:
        """One window's logits `[positions, vocab]`."""
        ours, theirs = log_softmax(engine), log_softmax(reference)
        self.kl += float((np.exp(theirs) * (theirs - ours)).sum())
        self.same += int((ours.argmax(1) == theirs.argmax(1)).sum())
        following = np.asarray(ids[1:])
        rows = np.arange(len(following))
        self.nll -= float(ours[rows, following].sum())
        self.nll_reference -= float(theirs[rows, following].sum())
        self.positions += len(ids)
        self.targets += len(following)

    def told(self) -> str:
        perplexity, base = (np.exp(n / self.targets) for n in (self.nll, self.nll_reference))
        return (
            f"KL {self.kl / self.positions:.2e}   top-1 {100 * self.same / self.positions:.2f} %   "
            f"perplexity {perplexity:.3f} ({100 * (perplexity / base - 1):+.2f} %)"
        )


def log_softmax(logits: Logits) -> npt.NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(1, keepdims=True))


def logits_on(model: Model, where: str, kv: enc.Encoding, ids: Sequence[int]) -> Logits:
    context = InferenceContext(where)
    cache = KvCache.allocate(model, context, WINDOW, kv)
    return np.asarray(forward_with_kv_context(model, list(ids), cache, context, want=All()))


def from_llama(python: str, path: Path, windows: list[list[int]], out: str) -> Logits:
    asked = {"path": str(path), "threads": 2, "windows": windows, "out": out}
    script = Path(__file__).parent / "llama_logits.py"
    subprocess.run(
        [python, str(script)], input=json.dumps(asked) + "\n", text=True, check=True, capture_output=True
    )
    logits: Logits = np.load(out, mmap_mode="r")
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--llama-python")
    parser.add_argument("--windows", type=int, default=6)
    parser.add_argument("--kv", nargs="+", choices=tuple(KV_DTYPES), default=["f16"])
    asked = parser.parse_args()
    register_defaults()
    for path in asked.models:
        opened = open_model(path)
        ids = opened.tokenizer().encode(TEXT.read_text("utf-8"))
        windows = [ids[at : at + WINDOW] for at in range(0, WINDOW * asked.windows, WINDOW)]
        assert len(windows[-1]) == WINDOW, "the text has fewer windows"
        with tempfile.TemporaryDirectory() as folder:
            theirs = Distance()
            ours, apart = ({kv: Distance() for kv in asked.kv} for _ in range(2))
            llama = None
            if asked.llama_python:
                llama = from_llama(asked.llama_python, path, windows, f"{folder}/logits.npy")
            for w, window in enumerate(windows):
                reference = logits_on(opened.model, "reference", enc.F32, window)
                found = {kv: logits_on(opened.model, "cpu", KV_DTYPES[kv], window) for kv in asked.kv}
                for kv, logits in found.items():
                    ours[kv].add(reference, logits, window)
                    apart[kv].add(found[asked.kv[0]], logits, window)
                if llama is not None:
                    theirs.add(reference, llama[w], window)
        print(f"{path.name}: {len(windows)} windows of {WINDOW} tokens")
        for kv in asked.kv:
            print(f"  cpu, {kv:5} {ours[kv].told()}")
        for kv in asked.kv[1:]:
            print(f"  {kv:4} beside {asked.kv[0]}: {apart[kv].told()}")
        if asked.llama_python:
            print(f"  llama.cpp  {theirs.told()}")


if __name__ == "__main__":
    main()
