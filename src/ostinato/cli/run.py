"""`ostinato run`: one prompt, one answer."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from ostinato.cli.console import Console, console_options
from ostinato.host.collector import Starting
from ostinato.hub.aliases import ALIASES, DEFAULT_MODEL

if TYPE_CHECKING:
    from ostinato.engine.llm import LLM, Generation
    from ostinato.engine.receipt import Receipt

PACK_CACHE = "Keep packed weights on disk; the next start maps them."


def complete_model(context: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """What a shell offers for a model: short names, or else files; bash can't offer both at once."""
    known = [CompletionItem(name) for name in ALIASES if name.startswith(incomplete)]
    return known or [CompletionItem(incomplete, type="file")]


@click.command()
@click.argument("prompt", nargs=-1, metavar="[PROMPT | -]")
@click.option("-m", "--model", shell_complete=complete_model, default=DEFAULT_MODEL, show_default=True,
              help="A .gguf file, a safetensors folder, hf:org/name, or a short name.")  # fmt: skip
@click.option("--raw", is_flag=True, help="Continue the text as it stands: no chat template.")
@click.option("--system", metavar="TEXT", help="A system message before the prompt.")
@click.option("--max-tokens", type=click.IntRange(min=1), metavar="N", help="Stop after N tokens.")
@click.option("--temperature", type=float, metavar="T", help="0 always takes the likeliest token.")
@click.option(
    "--top-p", type=float, metavar="P", help="Draw from the likeliest tokens that together reach P."
)
@click.option(
    "--min-p", type=float, metavar="P", help="Draw from tokens at least P times as likely as the first."
)
@click.option("--seed", type=click.IntRange(min=0), metavar="S", help="The same seed draws the same tokens.")
@click.option("--device", metavar="D", help="KIND or KIND:ORDINAL.")
@click.option("--context", type=click.IntRange(min=1), metavar="N",
              help="Tokens of prompt and answer; by default what the model was trained for, at most 8192.",
              )  # fmt: skip
@click.option("--threads", type=click.IntRange(min=1), metavar="N", help="CPU threads.")
@click.option(
    "--weights",
    metavar="ENCODING",
    help="Encode float matrices while loading: q8_0, q4_1, q4_0, bf16, f16, f32.",
)
@click.option("--plan", type=click.Choice(["replan", "held", "captured"]), default="captured",
              help="Plan every step, hold a plan, or replay it where it can be captured.")  # fmt: skip
@click.option("--kv-dtype", type=click.Choice(["f16", "f32", "q8_0"]), help="What the KV cache is kept in.")
@click.option("--pack-cache", is_flag=True, help=PACK_CACHE)
@console_options
@click.pass_obj
def run(
    console: Console,
    prompt: tuple[str, ...],
    model: str,
    raw: bool,
    system: str | None,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    min_p: float | None,
    seed: int | None,
    device: str | None,
    context: int | None,
    threads: int | None,
    weights: str | None,
    plan: str,
    kv_dtype: str | None,
    pack_cache: bool,
) -> int:
    """Answer PROMPT, or what comes on stdin, or both: PROMPT first, then stdin. '-' reads stdin alone."""
    text = _read_prompt(prompt)
    if raw and system is not None:
        raise click.UsageError("--system needs the chat template that --raw leaves out.")
    with Starting() as starting:
        from ostinato.engine.llm import LLM
        from ostinato.generate.settings import Sampling

        sampling = Sampling(temperature=temperature, top_p=top_p, min_p=min_p, seed=seed)
        llm = LLM(
            model, device=device, context=context, kv_dtype=kv_dtype, threads=threads,
            weights=weights, plan=plan, pack_cache=pack_cache, progress=console.verbosity >= 0,
        )  # fmt: skip
        console.note(
            f"{llm.file.path} ({llm.file.source}) on {llm.inference.location}, context {llm.context}", level=1
        )
        if llm.context > llm.trained_context:
            console.note(
                f"a context of {llm.context} is more than the {llm.trained_context} the model was trained "
                "for: answers get worse beyond that"
            )
        if raw or not llm.has_chat_template:
            if system is not None:
                raise click.UsageError("this model has no chat template and so no place for --system.")
            generation = llm.stream(text, max_tokens=max_tokens, sampling=sampling)
        else:
            messages = [{"role": "system", "content": system}] if system is not None else []
            messages.append({"role": "user", "content": text})
            generation = llm.chat(messages, max_tokens=max_tokens, sampling=sampling)
        return _print(console, generation, llm, starting)


def _read_prompt(words: tuple[str, ...]) -> str:
    """PROMPT and stdin, joined when both are there; raises UsageError when neither is."""
    if len(words) > 1:
        raise click.UsageError(f"put the prompt in quotes: it came as {len(words)} words.")
    prompt = "".join(words)
    piped = "" if sys.stdin is None or (sys.stdin.isatty() and prompt != "-") else _stdin()
    parts = [part for part in ("" if prompt == "-" else prompt, piped) if part]
    if not parts:
        raise click.UsageError("give a PROMPT, or pipe text to stdin.")
    return "\n\n".join(parts)


def _stdin() -> str:
    # Bytes that are no UTF-8 become U+FFFD: a prompt from a strange file is no reason to fail.
    return sys.stdin.buffer.read().decode("utf-8", "replace").removesuffix("\n")


def note_packs(console: Console, llm: LLM) -> None:
    """Who asked for weights to be kept hears where that isn't done."""
    if llm.packs is not None and llm.packs.why_not:
        console.note(f"{llm.packs.what}: not kept in {llm.packs.folder}: {llm.packs.why_not}")


def _print(console: Console, generation: Generation, llm: LLM, starting: Starting) -> int:
    """Stream the answer to stdout, then the quiet line to stderr."""
    code, last = 0, "\n"
    try:
        for last in generation:
            sys.stdout.write(last)
            sys.stdout.flush()
            starting.over()
    except KeyboardInterrupt:
        code = 130  # and what was generated so far is kept
    finally:
        if not last.endswith("\n"):
            sys.stdout.write("\n")
            sys.stdout.flush()
    note_packs(console, llm)
    console.note(summary(generation.receipt))
    return code


def summary(receipt: Receipt) -> str:
    """The quiet line; the decode rate stands last, for a person's eye and for scripts."""
    parts = [
        f"{receipt.prompt_tokens} prompt tokens",
        f"{receipt.tokens} generated ({receipt.finish_reason})",
    ]
    if receipt.seconds_to_first:  # not where Ctrl-C came before the first
        parts.append(f"first after {receipt.seconds_to_first:.2f} s")
    if receipt.seed is not None:
        parts.append(f"seed {receipt.seed}")
    parts.append(f"{receipt.tokens_per_second:.1f} tok/s")
    return " · ".join(parts)
