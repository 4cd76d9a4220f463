"""The Jinja environment that chat templates run in.

A template comes inside a model file from a stranger. Jinja's sandbox keeps it from Python; what the
sandbox doesn't bound is work, so a `Meter` counts loop turns, calls and characters, and stops a template
that does more than any conversation needs.

The conventions are those of transformers (`utils/chat_template_utils.py`): trimmed blocks, `tojson`
without HTML escaping, `raise_exception`, `strftime_now`, loop controls, `{% generation %}` as plain text.
"""

from __future__ import annotations

import datetime
import json
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox

MAX_STEPS = 1_000_000  # loop turns and calls of one rendering
MAX_CHARS = 64 * 1024 * 1024  # characters written by one rendering, into the result or into a variable
MAX_VALUE = 16 * 1024 * 1024  # characters or items of any one value
MAX_SECONDS = 10.0
MAX_ARGUMENT = 1_000_000  # integer arguments: widths, counts, indents


class LimitExceeded(jinja2.TemplateError):
    """The template did more work than is allowed."""


class Meter:
    """The work of one rendering; mutable, for one rendering."""

    def __init__(self) -> None:
        self.steps = 0
        self.chars = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self, chars: int = 0) -> None:
        """Counts one loop turn or call, and the characters it writes."""
        self.steps += 1
        self.chars += chars
        if self.steps > MAX_STEPS:
            raise LimitExceeded(f"more than {MAX_STEPS} loop turns and calls")
        if self.chars > MAX_CHARS:
            raise LimitExceeded(f"more than {MAX_CHARS} characters written")
        if time.monotonic() > self._deadline:
            raise LimitExceeded(f"more than {MAX_SECONDS:g} seconds of work")


class TemplateEnvironment(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The sandbox with transformers' conventions and metered work; one rendering at a time.

    Args:
        source_size: characters of the template's source, which one call of a macro may write.
        now: the time that `strftime_now` tells.
    """

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, source_size: int, now: datetime.datetime) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[_GenerationTag, jinja2.ext.loopcontrols],
            finalize=self._written,
            cache_size=0,
        )
        self.meter = Meter()
        self._source_size = source_size
        self.filters = {name: self._metered(name, function) for name, function in self.filters.items()}
        self.filters["tojson"] = self._metered("tojson", _tojson)
        del self.filters["urlize"]  # multiplies its arguments, and no prompt has links
        self.filters["_turns"] = self._turns
        self.filters["_checked"] = _checked
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = now.strftime
        self.globals.pop("lipsum", None)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        for loop in tree.find_all(nodes.For):
            written = sum(len(data.data) for data in loop.find_all(nodes.TemplateData))
            loop.iter = nodes.Filter(loop.iter, "_turns", [nodes.Const(written)], [], None, None)
        self._check_concatenations(tree)
        return tree

    def _check_concatenations(self, node: nodes.Node) -> None:
        # `~` is the one operator that the sandbox can't intercept.
        for field, value in node.iter_fields():
            children = value if isinstance(value, list) else [value]
            wrapped = []
            for child in children:
                if isinstance(child, nodes.Node):
                    self._check_concatenations(child)
                    if isinstance(child, nodes.Concat):
                        child = nodes.Filter(child, "_checked", [], [], None, None)
                wrapped.append(child)
            setattr(node, field, wrapped if isinstance(value, list) else wrapped[0])

    def _written(self, value: Any) -> Any:
        text = str(value)
        self.meter.step(len(text))
        return text

    def _turns(self, items: Any, written: int) -> Any:
        if isinstance(items, jinja2.Undefined):
            return items
        return _MeteredIterable(items, self.meter, written)

    def _metered(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.meter.step()
            skip = 1 if getattr(function, "jinja_pass_arg", None) else 0
            _check_arguments(name, args[skip:], kwargs)
            return _checked(function(*args, **kwargs))

        if hasattr(function, "jinja_pass_arg"):  # whether it wants the context or the environment
            call.jinja_pass_arg = function.jinja_pass_arg  # type: ignore[attr-defined]
        return call

    def call(self, context: jinja2.runtime.Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        self.meter.step(self._source_size if isinstance(obj, jinja2.runtime.Macro) else 0)
        name = getattr(obj, "__name__", "")
        # The sandbox hands out str.format wrapped.
        receiver = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        _check_arguments(name, (receiver, *args) if isinstance(receiver, str) else args, kwargs)
        return _checked(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for value, count in ((left, right), (right, left)):
                if isinstance(value, str | list | tuple) and isinstance(count, int):
                    _check_size(len(value) * count)
        if operator == "%" and isinstance(left, str):
            _check_format(left)
        if operator in ("*", "**") and isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > 4096:
                raise LimitExceeded("an integer of more than 4096 bits")
        return _checked(super().call_binop(context, operator, left, right))


class _MeteredIterable:
    """What a loop runs over, each turn counted."""

    def __init__(self, items: Iterable[Any], meter: Meter, written: int) -> None:
        self._items = items
        self._meter = meter
        self._written = written

    def __iter__(self) -> Iterator[Any]:
        for item in self._items:
            self._meter.step(self._written)
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # a TypeError tells Jinja that there is no length


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}` marks what a model wrote, for training; here its body just stands there."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _check_size(size: int) -> None:
    if size > MAX_VALUE:
        raise LimitExceeded(f"a value of more than {MAX_VALUE} characters or items")


def _checked(value: Any) -> Any:
    if isinstance(value, str | bytes | list | tuple | dict):
        _check_size(len(value))
    return value


def _check_format(text: str) -> None:
    # Long numbers, widths taken from the arguments.
    if re.search(r"\d{7}|%[^%a-zA-Z]*\*|\{[^{}]*:[^{}]*\{", text):
        raise LimitExceeded("a format with an enormous width")


def _check_arguments(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuses what would grow before its size could be seen; `args` begin with the value worked on."""
    for argument in (*args, *kwargs.values()):
        if isinstance(argument, int) and abs(argument) > MAX_ARGUMENT and name not in _ANY_INTEGER:
            raise LimitExceeded(f"an argument of {argument} to {name!r}")
    text = str(args[0]) if args else ""
    if name in ("format", "format_map"):
        _check_format(text)
    elif name == "replace" and len(args) >= 3:
        _check_size(text.count(str(args[1])) * len(str(args[2])))
    elif name in ("indent", "expandtabs"):
        width = max((value for value in (*args[1:], *kwargs.values()) if isinstance(value, int)), default=8)
        _check_size((text.count("\n") + text.count("\t") + 1) * width)
    elif name == "translate" and len(args) >= 2 and isinstance(args[1], dict):
        _check_size(len(text) * max((len(str(value)) for value in args[1].values()), default=0))
    elif name == "tojson" and isinstance(kwargs.get("indent", 0), int) and kwargs.get("indent", 0) > 64:
        raise LimitExceeded("an indent of more than 64")
    elif name == "join":
        # Of a method the receiver is the separator, of the filter the first argument.
        lengths = [len(str(item)) for value in args if isinstance(value, list | tuple) for item in value]
        strings = (value for value in (*args, *kwargs.values()) if isinstance(value, str))
        _check_size(sum(lengths) + max(map(len, strings), default=0) * len(lengths))


# Filters whose value may be any number: they make nothing of its size.
_ANY_INTEGER = frozenset({"abs", "default", "d", "float", "int", "round", "string", "tojson", "safe", "list"})
