"""Takes credentials out of what other programs say, before anyone sees it.

Package tools are configured with addresses that carry names, passwords and tokens. Losing a harmless word is
fine here; letting a secret through is not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

_HIDDEN = "***"
_LONGEST = 400  # characters that are handed on
_READ = 4000  # characters that are looked at: the patterns take quadratic time at worst

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)")
_CONTROL = re.compile(r"[^\S ]+|[\x00-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")
# An address keeps its scheme and host alone: user, path, query and fragment may all carry tokens.
_ADDRESS = re.compile(
    r"([a-z][a-z0-9+.-]{0,19}://)(?:\S*@)?([^\s/?#@'\"<>()\[\],;]*)([^\s'\"<>()\[\],;]*)", re.IGNORECASE
)
_USERINFO = re.compile(r"(?<![^\s:/@'\"])[^\s:/@'\"]+:[^\s@]+@(?=[\w\[])")
_HEADER = re.compile(
    r"\b(authorization\s*[:=]\s*|bearer\s+|basic\s+(?=[\w+/]+=*\b))(?:(?:bearer|basic|token)\s+)?[^\s'\",;]+",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"((?:passw(?:or)?d|passphrase|token|secret|api[-_]?key|credentials?)[\w-]*[\"']?\s*[=:]\s*)(\"[^\"]*\"|'[^']*'|\S+)",
    re.IGNORECASE,
)
_KNOWN_SHAPES = re.compile(r"\b(?:pypi-|gh[opsur]_|github_pat_|glpat-|hf_|AKIA|eyJ)[\w.-]{8,}")
_SECRET_NAMES = re.compile(r"passw|passphrase|token|secret|api_?key|credential", re.IGNORECASE)
_IN_ADDRESS = re.compile(r"://([^/\s]*)@")


def scrub(text: str, environ: Mapping[str, str] | None = None) -> str:
    """`text` as one short line without credentials or terminal escapes.

    Hides what looks like one, and whatever the environment (`os.environ` by default) is known to hold as one.
    """
    text = _CONTROL.sub(" ", _ESCAPES.sub("", text)).strip()
    if len(text) > _READ:
        # Cut between words: half a secret no longer looks like one.
        text = text[:_READ].rpartition(" ")[0]
    for secret in sorted(_secrets(os.environ if environ is None else environ), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    text = _ADDRESS.sub(lambda m: m[1] + m[2] + ("/..." if m[3].strip("/.:") else m[3]), text)
    text = _USERINFO.sub(f"{_HIDDEN}@", text)
    text = _HEADER.sub(rf"\1{_HIDDEN}", text)
    text = _ASSIGNED.sub(rf"\1{_HIDDEN}", text)
    text = _KNOWN_SHAPES.sub(_HIDDEN, text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def _secrets(environ: Mapping[str, str]) -> Iterator[str]:
    """Values that stand for a password: named so, or the user part of an address."""
    for name, value in environ.items():
        found = [value] if _SECRET_NAMES.search(name) else []
        for userinfo in _IN_ADDRESS.findall(value):
            found += [userinfo, *userinfo.split(":", 1)]
        for secret in found:
            # Shorter ones would hide half of every sentence.
            if len(secret) >= 6:
                yield secret
                yield unquote(secret)
