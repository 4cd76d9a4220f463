"""The engines that `peers.py` compares: each times one piece of work and is idle before and after."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ostinato.engine.llm import LLM
from ostinato.engine.rates import Rig, Work


@dataclass(frozen=True)
class Setup:
    """What both sides are given alike."""

    model: Path
    threads: int
    context: int
    kv: str
    sequences: int = 1
    """That are decoded at once, each in a context of its own."""


class Engine(Protocol):
    name: str

    def can(self, work: Work) -> bool:
        """Whether this engine is measured at it."""

    def time(self, work: Work) -> float:
        """Seconds that the work takes, its depth already there."""

    def cpu_seconds(self) -> float:
        """CPU time that this engine has used so far: it must stand still while another is measured."""

    def about(self) -> Mapping[str, str]:
        """Versions and build flags."""

    def close(self) -> None: ...


class Ours:
    name = "ostinato"

    def __init__(self, setup: Setup) -> None:
        self.llm = LLM(
            setup.model, device="cpu", threads=setup.threads, context=setup.context, kv_dtype=setup.kv
        )
        self.rig = Rig(self.llm)
        self.device = self.llm.inference.devices.device(self.llm.inference.location)

    def can(self, work: Work) -> bool:
        return True

    def time(self, work: Work) -> float:
        return self.rig.time(work).seconds

    def cpu_seconds(self) -> float:
        return time.process_time()

    def about(self) -> Mapping[str, str]:
        from ostinato.host.version import __version__

        return {"version": __version__, "device": str(self.llm.inference.location)}

    def close(self) -> None:
        """Its memory goes with it."""


class Worker:
    """A script of this folder in a process of its own, with another Python; both speak JSON lines."""

    name: str

    def __init__(self, python: str, script: str, **setup: Any) -> None:
        self._process = subprocess.Popen(
            [python, str(Path(__file__).with_name(script))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            self._ask(**setup)
        except BaseException:
            self.close()
            raise

    def can(self, work: Work) -> bool:
        return True

    def _ask(self, **asked: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has ended; what it said last may still be there
            self._process.stdin.write(json.dumps(asked) + "\n")
            self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: the worker has ended, see above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def time(self, work: Work) -> float:
        answer = self._ask(do=work.kind, tokens=work.tokens, depth=work.depth, rows=work.rows)
        seconds: float = answer["seconds"]
        return seconds

    def cpu_seconds(self) -> float:
        with open(f"/proc/{self._process.pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def about(self) -> Mapping[str, str]:
        return self._ask(do="flags")

    def close(self) -> None:
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()


class LlamaWorker(Worker):
    """llama.cpp through llama-cpp-python."""

    def __init__(self, python: str, setup: Setup, flash: bool) -> None:
        self.name = f"llama.cpp, flash attention {'on' if flash else 'off'}"
        super().__init__(
            python,
            "llama_worker.py",
            path=str(setup.model),
            threads=setup.threads,
            context=setup.context,
            flash=flash,
            kv=setup.kv,
            sequences=setup.sequences,
        )


class OpenVinoWorker(Worker):
    """OpenVINO GenAI reading the same file. Its KV cache has the type that it chooses."""

    name = "OpenVINO GenAI"

    def __init__(self, python: str, setup: Setup) -> None:
        super().__init__(python, "openvino_worker.py", path=str(setup.model), threads=setup.threads)

    def can(self, work: Work) -> bool:
        return work.kind == "prefill" or (work.kind == "decode" and work.depth == 0)


class LlamaBench:
    """llama.cpp's own benchmark, started anew for every measurement, so that between two it isn't there."""

    def __init__(self, binary: str, setup: Setup, flash: bool) -> None:
        self.name = f"llama.cpp, flash attention {'on' if flash else 'off'}"
        kv = ["-ctk", setup.kv, "-ctv", setup.kv, "-fa", str(int(flash))]
        self._command = [
            binary, "-m", str(setup.model), "-t", str(setup.threads), "-r", "1", "-o", "json", *kv,
        ]  # fmt: skip
        self._about: dict[str, str] = {}

    def can(self, work: Work) -> bool:
        return work.kind != "rows"

    def time(self, work: Work) -> float:
        prompt, new = (0, work.tokens) if work.kind == "decode" else (work.tokens, 0)
        command = [*self._command, "-p", str(prompt), "-n", str(new), "-d", str(work.depth)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        return self.read(json.loads(done.stdout))

    def read(self, results: Sequence[Mapping[str, Any]]) -> float:
        (result,) = results
        told = ("build_commit", "build_number", "cpu_info", "backends")
        self._about = {key: str(result[key]) for key in told if key in result}
        return float(result["samples_ns"][0]) / 1e9

    def cpu_seconds(self) -> float:
        return 0.0

    def about(self) -> Mapping[str, str]:
        return self._about

    def close(self) -> None:
        """Nothing is running."""
