"""The form of a reference to a model on Hugging Face, refused before anything is done with it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ostinato.errors.huggingface import MalformedHubReference
from ostinato.hub.hf.names import is_safe

PREFIX = "hf:"
DEFAULT_REVISION = "main"

# Hugging Face's own rules for names; they leave nothing that could climb out of a folder or an address.
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")
_LONGEST_NAME = 96
_QUANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+-]{0,199}")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class HubReference:
    """A reference in its parts; at most one of `quant` and `file` is given."""

    text: str
    repo: str
    quant: str | None
    file: str | None
    revision: str

    @property
    def selector(self) -> str | None:
        """What follows the colon."""
        return self.file or self.quant

    @property
    def pinned(self) -> bool:
        """Whether the revision is a commit, which never changes."""
        return is_commit(self.revision)


def parse(text: str) -> HubReference:
    """The parts of `text`, which begins with `hf:`. Raises `MalformedHubReference`."""
    body, at, revision = text.removeprefix(PREFIX).rpartition("@")
    if not at:
        body, revision = revision, DEFAULT_REVISION
    repo, colon, selector = body.partition(":")
    require_repo_id(repo, text)
    require_revision(revision, text)
    if colon:
        require_selector(selector, text)
    is_file = selector.lower().endswith(".gguf")
    return HubReference(
        text=text,
        repo=repo,
        quant=selector if colon and not is_file else None,
        file=selector if is_file else None,
        revision=revision,
    )


def is_commit(revision: str) -> bool:
    """Whether `revision` is a whole commit hash."""
    return _COMMIT.fullmatch(revision) is not None


def require_repo_id(repo: str, text: str) -> None:
    """The guard of every address and folder made from a repository's name."""
    names = repo.split("/")
    if len(names) != 2:
        raise MalformedHubReference(text, "a repository is named org/name")
    for name in names:
        if len(name) > _LONGEST_NAME:
            raise MalformedHubReference(text, f"a name has at most {_LONGEST_NAME} characters")
        if not _NAME.fullmatch(name) or ".." in name or "--" in name or name.endswith(".git"):
            raise MalformedHubReference(
                text,
                "org and name consist of letters, digits, '-', '_' and '.', "
                "without '--' or '..' and with no '-' or '.' at either end",
            )


def require_revision(revision: str, text: str) -> None:
    """The guard of every address and folder made from a revision."""
    bad = ".." in revision or "//" in revision or revision.endswith(("/", ".", ".lock"))
    if bad or not _REVISION.fullmatch(revision) or "/." in revision:
        raise MalformedHubReference(text, "after the @ stands a branch, a tag or a commit")


def require_selector(selector: str, text: str) -> None:
    """The guard of what follows the colon: one quantisation, or a file inside the repository."""
    if selector.lower().endswith(".gguf"):
        if not is_safe(selector):
            raise MalformedHubReference(text, "the file is no plain path inside the repository")
    elif not _QUANT.fullmatch(selector):
        raise MalformedHubReference(text, "after the colon stands a quantisation or a .gguf file")
