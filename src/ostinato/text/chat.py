"""Conversations to prompts, through the chat template inside a model file."""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ostinato.errors.text import ChatTemplateError
from ostinato.text.provenance import StandIns, leaves, map_leaves
from ostinato.text.special import Span, without_surrogates
from ostinato.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    import jinja2.nodes

MAX_SOURCE = 1024 * 1024
"""The longest template accepted, in characters; real ones stay below 20,000."""

MAX_PROMPT = 16 * 1024 * 1024
"""The longest rendered prompt, in characters."""

Message = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class RenderedChat:
    """A rendered conversation and the stretches of it that came from its messages."""

    text: str
    untrusted: tuple[Span, ...]  # sorted and disjoint, in characters


class ChatTemplate:
    """A chat template, parsed once. Safe to share between threads.

    Args:
        source: the template, in Jinja.
        bos: the text of the beginning-of-sequence token, `bos_token` in the template.
        eos: the text of the end-of-sequence token, `eos_token` in the template.

    Raises:
        ChatTemplateError: the source is too long or is not a template.
    """

    def __init__(self, source: str, *, bos: str, eos: str) -> None:
        if len(source) > MAX_SOURCE:
            raise ChatTemplateError(f"longer than {MAX_SOURCE} characters")
        self.source = source
        self._tokens = {"bos_token": bos, "eos_token": eos}
        import jinja2

        from ostinato.text.template_sandbox import TemplateEnvironment

        try:
            environment = TemplateEnvironment(len(source), datetime.datetime.now())
            tree = environment.parse(source)
            self._words, self._looked_for = _words(tree)
            self._code = environment.compile(tree)
        except (jinja2.TemplateError, RecursionError, MemoryError, SyntaxError, ValueError) as error:
            raise ChatTemplateError("not a valid template", _detail(error)) from None

    def render(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        **extra: Any,
    ) -> str:
        """The conversation as text. Encode it with `encode_chat`, which knows what to trust.

        Args:
            messages: mappings with `role` and `content`, and whatever else the template reads.
            add_generation_prompt: end with the opening of the model's turn.
            tools: descriptions of callable tools, for templates that know them.
            **extra: further variables of the template, such as `enable_thinking`.

        Raises:
            ChatTemplateError: the template refused the conversation or broke a limit.
        """
        variables = {**extra, "add_generation_prompt": add_generation_prompt}
        return self._render(messages, tools, variables, datetime.datetime.now())

    def render_tracked(
        self,
        messages: Sequence[Message],
        *,
        markers: Iterable[str],
        add_generation_prompt: bool = True,
        tools: Sequence[Any] | None = None,
        **extra: Any,
    ) -> RenderedChat:
        """The conversation as text, and which of its characters came from messages, tools and `extra`.

        Only characters that `markers` are made of are told apart, the others being harmless.

        Some templates take messages apart by what stands in them, and do something else when those
        characters are exchanged. For these it is tried in turn to leave the markers that the template
        looks for ("</think>") as they are in what the assistant said; and to exchange only whole markers
        (and what could be part of one at either end of a string). Where even that changes what the
        template does, the conversation is refused: nothing then tells its markers from the messages'.

        Args:
            messages: see `render`.
            markers: the texts that are tokens in the template and must be plain text in messages.
            add_generation_prompt: see `render`.
            tools: see `render`.
            **extra: see `render`.

        Raises:
            ChatTemplateError: as `render`, and where provenance can't be told.
        """
        messages, tools, extra = map_leaves((list(messages), tools, extra), without_surrogates)
        extra["add_generation_prompt"] = add_generation_prompt
        now = datetime.datetime.now()  # one for all renderings, which must not differ in it
        text = self._render(messages, tools, extra, now)
        try:
            stand_ins = StandIns(markers, [self.source, text, *leaves((messages, tools, extra))])
        except ValueError as error:
            raise ChatTemplateError("can't tell its markers from the messages", str(error)) from None
        known = self._looked_for & stand_ins.markers
        strict, lenient = stand_ins.hide_all(self._words), stand_ins.hide_all(self._words, known)
        sparing = functools.partial(stand_ins.hide_markers, known=known)
        for said, other in (
            (strict, strict),
            (lenient, strict),
            (stand_ins.hide_markers, stand_ins.hide_markers),
            (sparing, stand_ins.hide_markers),
        ):
            hidden_messages = [
                map_leaves(message, said if _role(message) == "assistant" else other) for message in messages
            ]
            hidden_tools, hidden_extra = map_leaves((tools, extra), other)
            try:
                hidden = self._render(hidden_messages, hidden_tools, hidden_extra, now)
            except ChatTemplateError:
                continue
            if stand_ins.show(hidden) == text:
                return RenderedChat(text, tuple(stand_ins.spans(hidden)))
        raise ChatTemplateError(
            "can't tell its markers from the messages",
            "a message holds the text of a special token, and the template changes messages that do",
        )

    def _render(self, messages: Any, tools: Any, extra: Mapping[str, Any], now: datetime.datetime) -> str:
        import jinja2

        from ostinato.text.template_sandbox import TemplateEnvironment

        # A fresh environment a rendering: it meters that rendering, and nothing leaks into the next.
        environment = TemplateEnvironment(len(self.source), now)
        variables = {**self._tokens, **extra, "messages": messages, "tools": tools}
        pieces: list[str] = []
        size = 0
        try:
            template = jinja2.Template.from_code(environment, self._code, environment.make_globals(None))
            for piece in template.generate(variables):
                size += len(piece)
                if size > MAX_PROMPT:
                    raise ChatTemplateError(f"a prompt of more than {MAX_PROMPT} characters")
                pieces.append(piece)
        except ChatTemplateError:
            raise
        # A template can reach any error of the methods and filters it calls.
        except Exception as error:
            raise _refusal(error, messages) from None
        return "".join(pieces)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    tools: Sequence[Any] | None = None,
    **extra: Any,
) -> list[int]:
    """The token ids of a conversation, in which messages can't forge the template's markers.

    For messages without the text of special tokens, these are the ids of the whole rendered text with
    its markers parsed.

    Args:
        tokenizer: the model's tokenizer.
        template: the model's chat template.
        messages: see `ChatTemplate.render`.
        add_generation_prompt: see `ChatTemplate.render`.
        tools: see `ChatTemplate.render`.
        **extra: see `ChatTemplate.render`.

    Raises:
        ChatTemplateError: see `ChatTemplate.render_tracked`.
    """
    chat = template.render_tracked(
        messages,
        markers=tokenizer.special.markers,
        add_generation_prompt=add_generation_prompt,
        tools=tools,
        **extra,
    )
    return tokenizer.encode_partly_trusted(chat.text, chat.untrusted)


def _words(tree: jinja2.nodes.Template) -> tuple[set[str], set[str]]:
    """The strings in a template's expressions, and those of them that it may look for in messages."""
    import jinja2.nodes as nodes

    def strings(found: Iterable[nodes.Node | None]) -> set[str]:
        values = (node.value for node in found if isinstance(node, nodes.Const))
        return {
            value for value in values if isinstance(value, str) and len(value) > 1 and not value.isspace()
        }

    looked_for: set[str] = set()
    for node in tree.find_all((nodes.Compare, nodes.Call, nodes.Filter, nodes.Test, nodes.Assign)):
        if isinstance(node, nodes.Compare):
            looked_for |= strings([node.expr, *(operand.expr for operand in node.ops)])
        elif isinstance(node, nodes.Assign):
            looked_for |= strings([node.node])
        elif isinstance(node, nodes.Call | nodes.Filter | nodes.Test):
            looked_for |= strings(node.args)
    return strings(tree.find_all(nodes.Const)), looked_for


def _role(message: Any) -> Any:
    return message.get("role") if isinstance(message, Mapping) else None


def _refusal(error: Exception, messages: Any) -> ChatTemplateError:
    import jinja2

    from ostinato.text.template_sandbox import LimitExceeded

    if isinstance(error, LimitExceeded):
        return ChatTemplateError("it does too much work", _detail(error))
    if isinstance(error, RecursionError | MemoryError | OverflowError):
        return ChatTemplateError("it does too much work", _detail(error))
    if isinstance(error, jinja2.TemplateError):
        system = any(_role(message) == "system" for message in messages)
        return ChatTemplateError("refused the conversation", _detail(error), system_message=system)
    return ChatTemplateError("failed", _detail(error))


def _detail(error: BaseException) -> str:
    text = str(getattr(error, "message", None) or error)
    return text[:500] or type(error).__name__
