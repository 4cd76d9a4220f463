"""The comparison with llama.cpp: its arithmetic, its rule, its turns. llama.cpp is a stand-in."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import make_models  # noqa: E402
import peers  # noqa: E402
from peer_engines import LlamaBench, LlamaWorker, OpenVinoWorker, Setup  # noqa: E402

from ostinato.devices.cpu.bandwidth import ReadBandwidth  # noqa: E402
from ostinato.devices.cpu.device import CpuDevice  # noqa: E402
from ostinato.engine.llm import LLM  # noqa: E402
from ostinato.engine.rates import Work  # noqa: E402
from ostinato.formats.gguf import GgufFile  # noqa: E402
from ostinato.ir import encoding as enc  # noqa: E402

TINY = Path(__file__).parents[1] / "fixtures" / "tiny-llama-grouped.gguf"
ON, OFF = "llama.cpp, flash attention on", "llama.cpp, flash attention off"
RULE = peers.Rule(decode_ratio=1.0, prefill_ratio=0.5, least_share=0.9)

_WORKER = """#!/bin/sh
while read line; do
  case "$line" in
    *flags*) echo '{"system": "FAKE = 1", "version": "0"}' ;;
    *prefill*) echo '{"seconds": 4.0}' ;;
    *decode*) echo '{"seconds": 0.5}' ;;
    *) echo '{"ready": true}' ;;
  esac
done
"""
_BENCH = """#!/bin/sh
echo "$@" >> "$0.calls"
echo '[{"samples_ns": [250000000], "build_commit": "abc", "cpu_info": "a CPU"}]'
"""


def row(ours: list[float], on: list[float], off: list[float], work: Work, nbytes: float = 10.0) -> peers.Row:
    rates = {"ostinato": ours, ON: on, OFF: off}
    return peers.Row("m", work, rates, dict.fromkeys(rates, nbytes))


def script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


def test_the_peer_is_its_better_way_and_ratios_are_taken_round_by_round() -> None:
    found = row([10, 30, 20], [5, 5, 40], [10, 10, 10], Work("decode", 8))
    assert found.peer == OFF
    assert found.ratios == [1, 3, 2]
    assert found.share("ostinato", 400) == 10 * 20 / 400
    assert row([1], [2], [3], Work("prefill", 8)).share("ostinato", 400) is None


def test_the_limit_is_what_reading_alone_would_give() -> None:
    found = row([10, 30, 20], [5, 5, 5], [1, 1, 1], Work("decode", 8))
    assert found.of_limit is None
    found.limits = [20, 40, 25]
    assert found.of_limit == 0.75


@pytest.mark.parametrize(("ours", "best", "reached"), [
    ([10.0, 10.0, 10.0], 1e9, "by ratio"),
    ([9.9, 9.9, 30.0], 1e9, "no"),
    ([9.0, 9.0, 9.0], 100.0, "by share"),
    ([8.9, 8.9, 8.9], 100.0, "no"),
])  # fmt: skip
def test_when_a_row_is_reached(ours: list[float], best: float, reached: str) -> None:
    found = row(ours, [10, 10, 10], [1, 1, 1], Work("decode", 8))
    assert RULE.verdict(found, best, fault=False) == reached


def test_a_prompt_is_reached_by_its_ratio_alone() -> None:
    assert RULE.verdict(row([5], [10], [1], Work("prefill", 8)), 1.0, fault=False) == "by ratio"
    assert RULE.verdict(row([4], [10], [1], Work("prefill", 8)), 1.0, fault=False) == "no"


def test_whoever_exceeds_the_yardstick_no_row_is_reached_by_its_share() -> None:
    fine, faulty = row([9], [10], [1], Work("decode", 8)), row([9], [10.5], [1], Work("decode", 8, 64))
    assert RULE.fault([fine], 100) == []
    (fault,) = RULE.fault([fine, faulty], 100)
    assert fault == f"m, decode 8 at 64: {ON} reaches 1.050 of B"
    assert RULE.verdict(fine, 100, fault=False) == "by share"
    assert RULE.verdict(fine, 100, fault=True) == "no"


def test_rows_by_name() -> None:
    assert peers.work_of("decode-2048", 128) == Work("decode", 128, 2048)
    assert peers.work_of("prefill-512", 128) == Work("prefill", 512)
    assert peers.work_of("rows-24", 128) == Work("rows", 120, rows=24), "whole steps"
    for name in ("decode", "decode-", "decode--1", "train-3", "prefill-x", "rows-0", "rows-129"):
        with pytest.raises(argparse.ArgumentTypeError):
            peers.work_of(name, 128)


def test_llama_bench_is_asked_for_the_same_work(tmp_path: Path) -> None:
    binary = script(tmp_path / "llama-bench", _BENCH)
    engine = LlamaBench(binary, Setup(TINY, 3, 512, "f16"), flash=True)
    assert engine.time(Work("decode", 16, 64)) == 0.25
    assert engine.time(Work("prefill", 32)) == 0.25
    decode, prefill = Path(f"{binary}.calls").read_text().splitlines()
    common = f"-m {TINY} -t 3 -r 1 -o json -ctk f16 -ctv f16 -fa 1"
    assert decode == f"{common} -p 0 -n 16 -d 64"
    assert prefill == f"{common} -p 32 -n 0 -d 0"
    assert engine.about() == {"build_commit": "abc", "cpu_info": "a CPU"}


def test_a_worker_that_dies_is_told(tmp_path: Path) -> None:
    dead = script(tmp_path / "python", "#!/bin/sh\nexit 3\n")
    with pytest.raises(SystemExit, match="the worker has ended"):
        LlamaWorker(dead, Setup(TINY, 1, 64, "f16"), flash=False)


def test_a_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(CpuDevice, "read_bandwidth", lambda self: ReadBandwidth(self.engine, 1 << 20))
    monkeypatch.setattr(peers, "SETTLE", 0.0)
    python, out = script(tmp_path / "python", _WORKER), tmp_path / "out.json"
    monkeypatch.setattr(sys, "argv", [
        "peers.py", str(TINY), "--llama-python", python, "--row", "decode-4", "--row", "prefill-20",
        "--rounds", "2", "--tokens", "3", "--threads", "1", "--json", str(out),
        "--openvino-python", python,
    ])  # fmt: skip
    peers.main()
    report: dict[str, Any] = json.loads(out.read_text())
    decode, prefill = report["rows"]
    assert decode["work"]["name"] == "decode 3 at 4"
    assert decode["tokens_per_second"][ON] == [6, 6]
    assert prefill["tokens_per_second"][OFF] == [5, 5]
    assert [OpenVinoWorker.name in row["tokens_per_second"] for row in (decode, prefill)] == [False, True], (
        "it decodes from an empty cache alone"
    )
    assert len(decode["ratios"]) == 2
    assert len(decode["limits"]) == 2
    assert decode["of_limit"] > 0
    assert (prefill["limits"], prefill["of_limit"]) == ([], None)
    assert decode["reached"] == prefill["reached"] == "by ratio"
    assert decode["shares"]["ostinato"] > decode["shares"][ON] > 0
    assert report["about"]["llama.cpp"] == {"system": "FAKE = 1", "version": "0"}
    assert len(report["bandwidth"]["samples"]) == 2 * 3
    text = capsys.readouterr().out
    assert "decode 3 at 4, by round:" in text
    assert "FAKE = 1" in text


def test_bytes_of_a_file_that_a_token_reads() -> None:
    """An embedding that is no head as well is left out."""
    for name, left_out in (("grouped", "token_embd.weight"), ("tied", "")):
        path = TINY.with_name(f"tiny-llama-{name}.gguf")
        with GgufFile.open(path) as file:
            tensors = dict(file.tensors)
        whole = sum(tensor.nbytes for tensor in tensors.values())
        assert peers.weight_bytes(path) == whole - (tensors[left_out].nbytes if left_out else 0)


def test_a_random_model_runs(tmp_path: Path) -> None:
    path = tmp_path / "random.gguf"
    size = make_models.Size(layers=2, dim=128, ffn=192, kv_heads=1)
    make_models.random_model(path, size, TINY, enc.Q4_0)
    llm = LLM(path, context=16)
    generation = llm.stream("abc", max_tokens=3)
    generation.text()
    assert generation.receipt.tokens > 0 or generation.receipt.finish_reason == "stop"
    matrices = [weight for weight in llm.model.weights.values() if len(weight.shape) == 2]
    assert {weight.encoding for weight in matrices} == {enc.Q4_0}


def test_steps_of_several_rows_are_measured_by_themselves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for others in (["--llama-python", "p", "--row", "decode-0"], ["--llama-bench", "b"]):
        monkeypatch.setattr(sys, "argv", ["peers.py", str(TINY), "--row", "rows-4", *others])
        with pytest.raises(SystemExit):
            peers.main()
        assert "rows-N are measured by themselves, with --llama-python" in capsys.readouterr().err
