"""`ostinato run`: what is asked, what is said where, and the exit code."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from commandline import FIXTURES, GREEDY, TINY

from ostinato.cli import run as run_module
from ostinato.cli.run import summary
from ostinato.engine import memory
from ostinato.engine.llm import LLM
from ostinato.engine.receipt import Receipt
from ostinato.generate.settings import Sampling

Cli = Callable[..., Any]


def answer(text: str, **options: Any) -> str:
    """What a person reads: the answer, and an end of line."""
    piece = LLM(TINY).chat(text, sampling=Sampling(temperature=0.0), **options).text()
    return piece if piece.endswith("\n") else piece + "\n"


def test_the_answer_alone_is_on_stdout(cli: Cli) -> None:
    ran = cli("run", *GREEDY, "hi")
    assert (ran.code, ran.out) == (0, answer("hi"))


def test_the_quiet_line(cli: Cli) -> None:
    ran = cli("run", "-m", TINY, "--max-tokens", "4", "--seed", "7", "hi")
    assert re.fullmatch(
        r"21 prompt tokens · 4 generated \(length\) · first after \d+\.\d\d s · seed 7 · \d+\.\d tok/s\n",
        ran.err,
    )


def test_a_random_seed_is_shown_and_draws_the_same_again(cli: Cli) -> None:
    first = cli("run", "-m", TINY, "--temperature", "2", "hi")
    seed = re.search(r"seed (\d+)", first.err)
    assert seed is not None
    again = cli("run", "-m", TINY, "--temperature", "2", "--seed", seed[1], "hi")
    assert again.out == first.out
    assert "seed" not in cli("run", *GREEDY, "hi").err  # nothing is drawn


@pytest.mark.parametrize(("receipt", "line"), [
    (Receipt(5, 0, 1, 0.25, 0.0, 0, "length"),
     "5 prompt tokens · 1 generated (length) · first after 0.25 s · 0.0 tok/s"),
    (Receipt(5, 0, 11, 0.25, 2.0, 10, "stop", 3),
     "5 prompt tokens · 11 generated (stop) · first after 0.25 s · seed 3 · 5.0 tok/s"),
    (Receipt(5), "5 prompt tokens · 0 generated (interrupted) · 0.0 tok/s"),
])  # fmt: skip
def test_summary_lines(receipt: Receipt, line: str) -> None:
    assert summary(receipt) == line


# The prompt


@pytest.mark.parametrize(("arguments", "stdin", "prompt"), [
    (["hi"], None, "hi"),
    (["hi"], b"", "hi"),
    ([], b"hi", "hi"),
    ([], b"hi\n", "hi"),
    ([], b"hi\n\n", "hi\n"),
    (["-"], b"hi\n", "hi"),
    (["-"], None, None),
    (["hi"], b"you\n", "hi\n\nyou"),
    (["hi"], "é".encode(), "hi\n\né"),
    ([], b"a\xffb", "a\ufffdb"),
    (["--", "-x"], None, "-x"),
    ([], None, None),
    ([], b"", None),
    ([], b"\n", None),
    ([""], None, None),
])  # fmt: skip
def test_prompt_and_stdin(cli: Cli, arguments: list[str], stdin: bytes | None, prompt: str | None) -> None:
    ran = cli("run", *GREEDY, "--max-tokens", "5", *arguments, stdin=stdin)
    if prompt is None:
        assert (ran.code, ran.out) == (2, "")
        assert "give a PROMPT, or pipe text to stdin" in ran.err
    else:
        assert (ran.code, ran.out) == (0, answer(prompt, max_tokens=5))


def test_a_prompt_without_quotes(cli: Cli) -> None:
    ran = cli("run", "-m", "/nowhere.gguf", "why", "is", "it")
    assert ran.code == 2
    assert "put the prompt in quotes: it came as 3 words" in ran.err


def test_raw_and_system(cli: Cli) -> None:
    llm = LLM(TINY)
    greedy = Sampling(temperature=0.0)
    raw = cli("run", *GREEDY, "--raw", "--max-tokens", "6", "hi")
    assert raw.out == llm.generate("hi", sampling=greedy, max_tokens=6) + "\n"
    system = cli("run", *GREEDY, "--system", "S", "--max-tokens", "6", "hi")
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "hi"}]
    assert system.out == llm.chat(messages, sampling=greedy, max_tokens=6).text() + "\n"
    assert len({raw.out, system.out, cli("run", *GREEDY, "--max-tokens", "6", "hi").out}) == 3
    both = cli("run", "-m", "/nowhere.gguf", "--raw", "--system", "S", "hi")
    assert both.code == 2
    assert "--system needs the chat template" in both.err


def test_a_model_without_a_template_continues_the_text(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    path.write_bytes(Path(TINY).read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_tXmplate"))
    options = ("--temperature", "0", "--max-tokens", "6")
    plain = cli("run", "-m", str(path), *options, "hi")
    assert plain.out == cli("run", "-m", TINY, *options, "--raw", "hi").out
    refused = cli("run", "-m", str(path), "--system", "S", "hi")
    assert refused.code == 2
    assert "no chat template" in refused.err


# How much is said


@pytest.mark.parametrize("arguments", [
    ["-q", "run"], ["--quiet", "run"], ["run", "-q"], ["run", "--quiet"], ["-v", "run", "-q"],
])  # fmt: skip
def test_quiet_in_either_place(cli: Cli, arguments: list[str]) -> None:
    ran = cli(*arguments, *GREEDY, "--context", "100", "hi", "--max-tokens", "2")
    assert ran.code == 0
    assert ran.out
    assert ran.err == ""


@pytest.mark.parametrize(
    "arguments", [["-v", "run"], ["run", "-v"], ["run", "--verbose"], ["-q", "run", "-v"]]
)
def test_verbose_in_either_place(cli: Cli, arguments: list[str]) -> None:
    ran = cli(*arguments, *GREEDY, "hi", "--max-tokens", "2")
    first, last = ran.err.splitlines()
    assert first == f"{TINY} (path) on cpu:0, context 64"
    assert last.endswith("tok/s")


def test_nothing_is_dimmed_off_a_terminal(cli: Cli) -> None:
    assert "\x1b" not in cli("run", *GREEDY, "hi", "--max-tokens", "2").err
    assert "\x1b" not in cli("run", "-m", "nosuch", "hi").err


def test_a_context_beyond_the_trained_one_is_said(cli: Cli) -> None:
    ran = cli("run", *GREEDY, "--context", "100", "--max-tokens", "1", "hi")
    assert ran.code == 0
    assert "a context of 100 is more than the 64 the model was trained for" in ran.err
    assert "trained" not in cli("run", *GREEDY, "--context", "64", "--max-tokens", "1", "hi").err


# What is refused, and how

WRONG_USAGE = [
    (["--nosuch"], "--nosuch"),
    (["--max-tokens", "0"], "--max-tokens"),
    (["--max-tokens", "x"], "--max-tokens"),
    (["--context", "0"], "--context"),
    (["--threads", "0"], "--threads"),
    (["--seed", "-1"], "--seed"),
    (["--kv-dtype", "f8"], "f16"),
    (["--temperature", "hot"], "--temperature"),
    (["--temperature", "-1"], "temperature is -1.0, expected a number of at least 0"),
    (["--temperature", "nan"], "temperature is nan"),
    (["--temperature", "inf"], "temperature is inf"),
    (["--top-p", "0"], "top_p is 0.0"),
    (["--top-p", "1.5"], "top_p is 1.5"),
    (["--min-p", "-0.1"], "min_p is -0.1"),
    (["--seed", str(10**400)], "expected an integer from 0 to"),
    (["--device", "x y"], "device is 'x y', expected KIND or KIND:ORDINAL"),
    (["--device", "reference:one"], "KIND or KIND:ORDINAL"),
]


@pytest.mark.parametrize(("options", "text"), WRONG_USAGE, ids=lambda value: "".join(value)[:40])
def test_wrong_usage_is_2(cli: Cli, options: list[str], text: str) -> None:
    ran = cli("run", "-m", TINY, *options, "hi")
    assert (ran.code, ran.out) == (2, "")
    assert text in ran.err
    assert "Traceback" not in ran.err


FAILURES = [
    (["-m", "smolm2", "hi"], ["there is no model called 'smolm2'", "Did you mean smollm2?"]),
    (["-m", "/nowhere/model.gguf", "hi"], ["/nowhere/model.gguf"]),
    (["-m", str(FIXTURES), "hi"], [str(FIXTURES)]),
    (["-m", __file__, "hi"], [Path(__file__).name]),
    (["hi"], ["no source has the model 'smollm2'", "OSTINATO_OFFLINE"]),
    (["-m", TINY, "--device", "nosuch", "hi"], ["no device 'nosuch:0'", "cpu:0, reference:0"]),
    (["-m", TINY, "--device", "reference:3", "hi"], ["no device 'reference:3'"]),
    (["-m", TINY, "x" * 80], ["99 tokens", "context holds 64", "--context"]),
    (["-m", TINY, "--context", "20", "hi"], ["21 tokens", "context holds 20"]),
]


@pytest.mark.parametrize(("arguments", "texts"), FAILURES, ids=lambda value: value[-1][:30])
def test_a_failure_is_1_and_says_what_to_do(cli: Cli, arguments: list[str], texts: list[str]) -> None:
    ran = cli("run", *arguments)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith("Error: ")
    assert all(text in ran.err for text in texts), ran.err
    assert "Traceback" not in ran.err
    assert "fault of ostinato" not in ran.err


def test_too_little_memory_says_all_three_numbers(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_memory", lambda: memory.HEADROOM + 260_000)
    ran = cli("run", *GREEDY, "hi")
    assert (ran.code, ran.out) == (1, "")
    fits = re.search(
        r"a context of 64 needs 0\.06 GiB, 0\.06 GiB are free\n  The largest .* \(--context (\d+)\)", ran.err
    )
    assert fits is not None, ran.err
    assert cli("run", *GREEDY, "--context", fits[1], "hi").code == 0


@pytest.mark.parametrize("place", [["--debug", "run"], ["run", "--debug"]])
def test_tracebacks_only_with_debug(cli: Cli, place: list[str]) -> None:
    ran = cli(*place, "-m", "smolm2", "hi")
    assert ran.code == 1
    assert "Traceback" in ran.err
    assert "Did you mean smollm2?" in ran.err


def test_a_fault_of_ours_is_called_one(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(run_module, "_print", broken)
    ran = cli("run", *GREEDY, "hi")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "Error: ZeroDivisionError: oops\n  This is a fault of ostinato; --debug shows where.\n"
    assert "ZeroDivisionError" in cli("--debug", "run", *GREEDY, "hi").err


def test_an_error_half_way_keeps_the_text_and_ends_its_line(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pieces(*_: Any, **__: Any) -> Any:
        yield "some text"
        raise PermissionError(13, "Permission denied", "/a/file")

    monkeypatch.setattr(LLM, "chat", pieces)
    ran = cli("run", *GREEDY, "hi")
    assert (ran.code, ran.out) == (1, "some text\n")
    assert ran.err == "Error: /a/file: Permission denied\n"


@pytest.mark.parametrize(("pieces", "printed"), [
    ([], ""), (["a"], "a\n"), (["a", "\n"], "a\n"), (["a\n", "b"], "a\nb\n"),
    (["\x1b[1mbold\x1b[0m é"], "\x1b[1mbold\x1b[0m é\n"),
])  # fmt: skip
def test_the_text_comes_out_as_it_is(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, pieces: list[str], printed: str
) -> None:
    class Scripted(list[str]):
        receipt = Receipt()

    monkeypatch.setattr(LLM, "chat", lambda *_, **__: Scripted(pieces))
    assert cli("run", *GREEDY, "hi").out == printed


@pytest.mark.parametrize("options", [
    ["--threads", "1"], ["--device", "reference"], ["--device", "reference:0"], ["--kv-dtype", "f32"],
])  # fmt: skip
def test_options_that_change_no_answer(cli: Cli, options: list[str]) -> None:
    ran = cli("run", *GREEDY, *options, "--max-tokens", "6", "hi")
    assert (ran.code, ran.out) == (0, answer("hi", max_tokens=6))


def test_f16_cache_runs(cli: Cli) -> None:
    assert cli("run", *GREEDY, "--kv-dtype", "f16", "hi").code == 0


# Ctrl-C where there is nothing to keep yet


@pytest.mark.parametrize(("owner", "name"), [(run_module, "_stdin"), (LLM, "__init__")])
def test_ctrl_c_before_the_answer(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    def pressed(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, pressed)
    ran = cli("run", *GREEDY, stdin=b"hi")
    assert (ran.code, ran.out, ran.err.strip()) == (130, "", "")


def test_ctrl_c_while_the_command_loads(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> Any:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "ostinato.cli.app", Loading("ostinato.cli.app"))
    ran = cli("run", *GREEDY, "hi")
    assert (ran.code, ran.out, ran.err) == (130, "", "")
