"""Why a reference to a model on Hugging Face led to no file.

`repo` is "org/name", and no field holds a credential.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors.base import OstinatoError
from ostinato.errors.host import CacheNotWritable, NotEnoughDiskSpace


@dataclass(frozen=True, slots=True)
class HubChoice:
    """One GGUF model of a repository: its (first) file, its bytes if known, and how many files it is."""

    name: str
    size: int | None
    parts: int = 1

    def __str__(self) -> str:
        size = "size unknown" if self.size is None else _size(self.size)
        return (
            f"{_clip(self.name)} ({size})"
            if self.parts == 1
            else (f"{_clip(self.name)} ({size} in {self.parts} files)")
        )


@dataclass(eq=False, repr=False)
class MalformedHubReference(OstinatoError, ValueError):
    """`reference` begins with `hf:` but does not have the form of such a reference, for the `problem`."""

    reference: str
    problem: str

    def message(self) -> str:
        return f"{_clip(self.reference)!r} names no model on Hugging Face: {self.problem}"

    @property
    def remedy(self) -> str:
        return (
            "The form is hf:org/name[:QUANT or :FILE.gguf][@REVISION], for instance "
            "hf:org/name:Q4_K_M or hf:org/name@main."
        )


@dataclass(eq=False, repr=False)
class HubRepositoryMissing(OstinatoError, FileNotFoundError):
    """Hugging Face has no repository `repo`, or none that the one asking may see."""

    repo: str

    def message(self) -> str:
        return f"Hugging Face has no repository {self.repo}"

    @property
    def remedy(self) -> str:
        return "Check its spelling; a private one needs an HF_TOKEN that may read it."


@dataclass(eq=False, repr=False)
class HubRevisionMissing(OstinatoError, FileNotFoundError):
    """The repository `repo` has no branch, tag or commit `revision`."""

    repo: str
    revision: str

    def message(self) -> str:
        return f"the repository {self.repo} has no revision {self.revision!r}"

    @property
    def remedy(self) -> str:
        return "Name a branch, a tag or a commit after the @, or leave it out for the newest."


@dataclass(eq=False, repr=False)
class HubFileMissing(OstinatoError, FileNotFoundError):
    """The repository `repo` has no GGUF model `wanted`, a file or a quantisation.

    `near` are the models with similar names, `choices` all that it has.
    """

    repo: str
    wanted: str
    near: tuple[str, ...] = ()
    choices: tuple[HubChoice, ...] = ()

    def message(self) -> str:
        return f"the repository {self.repo} has no GGUF model {_clip(self.wanted)!r}"

    @property
    def remedy(self) -> str:
        if self.near:
            return f"Did you mean {' or '.join(map(_clip, self.near))}?"
        return f"It has: {_listed(self.choices)}." if self.choices else "It has no GGUF model at all."


@dataclass(eq=False, repr=False)
class HubChoiceNeeded(OstinatoError, ValueError):
    """The repository `repo` has several GGUF models that `wanted` (None: anything) may mean: `choices`."""

    repo: str
    wanted: str | None
    choices: tuple[HubChoice, ...]

    def message(self) -> str:
        meant = "" if self.wanted is None else f" called {self.wanted!r}"
        return f"the repository {self.repo} has {len(self.choices)} GGUF models{meant}"

    @property
    def remedy(self) -> str:
        return f"Name one of them as hf:{self.repo}:FILE. FILE may be: {_listed(self.choices)}."


@dataclass(eq=False, repr=False)
class HubModelMissing(OstinatoError, FileNotFoundError):
    """The repository `repo` holds no model that can be used: `expected` says what was looked for in vain."""

    repo: str
    expected: str = "neither GGUF files nor model.safetensors"

    def message(self) -> str:
        return f"the repository {self.repo} has {_clip(self.expected)}"

    @property
    def remedy(self) -> str:
        return "Choose a repository of the same model with .gguf files, or with model.safetensors."


@dataclass(eq=False, repr=False)
class PickleRefused(OstinatoError, ValueError):
    """The repository `repo` has its weights only in pickled `files`, which can run any code when opened."""

    repo: str
    files: tuple[str, ...]

    def message(self) -> str:
        shown = ", ".join(map(_clip, self.files[:3])) + (" ..." if len(self.files) > 3 else "")
        return (
            f"the repository {self.repo} has only pickled weights ({shown}): opening those can run any code"
        )

    @property
    def remedy(self) -> str:
        return (
            "Choose a repository of the same model with .safetensors or .gguf files; "
            "safetensors' own converter makes them from pickled ones."
        )


@dataclass(eq=False, repr=False)
class HubAccessDenied(OstinatoError, PermissionError):
    """Hugging Face does not let the one asking read `repo`.

    `reason` is "gated" (its terms must be accepted first), "private" (or not there at all: the answer is the
    same), "token" (the token itself was refused) or "forbidden". `token_sent`: a token went along.
    `detail` is what the server said.
    """

    repo: str
    reason: str
    token_sent: bool
    detail: str = ""

    def message(self) -> str:
        what = {
            "gated": f"the repository {self.repo} is gated: its owner grants access to it",
            "private": f"the repository {self.repo} is private or does not exist",
            "token": "Hugging Face refused the token that it was sent",
        }.get(self.reason, f"Hugging Face forbids access to the repository {self.repo}")
        return f"{what} ({self.detail})" if self.detail else what

    @property
    def remedy(self) -> str:
        login = "set HF_TOKEN to an access token of your account (or run: hf auth login)"
        if self.reason == "token":
            return "Set HF_TOKEN to a valid access token, or unset it for what is public."
        if self.reason == "gated":
            ask = f"Ask for access on the page of {self.repo} on Hugging Face"
            return f"{ask}, with the account of your token." if self.token_sent else f"{ask}, then {login}."
        if self.token_sent:
            return "Check the spelling, and that the account of your token may read it."
        return f"Check the spelling; if it is private, {login}."


@dataclass(eq=False, repr=False)
class HubUnreachable(OstinatoError, ConnectionError):
    """`reference` is not in Hugging Face's cache, and Hugging Face cannot be asked, for the `reason`.

    `offline`: the network is forbidden. `cached` are the models of the same repository that are in the cache.
    """

    reference: str
    reason: str
    offline: bool = False
    cached: tuple[str, ...] = ()

    def message(self) -> str:
        return (
            f"{self.reference} is not in the cache, and Hugging Face cannot be reached: {_clip(self.reason)}"
        )

    @property
    def remedy(self) -> str:
        held = f" The cache has, of the same repository: {', '.join(self.cached)}." if self.cached else ""
        if self.offline:
            return "Allow the network by unsetting OSTINATO_OFFLINE and HF_HUB_OFFLINE." + held
        return "Check the connection, the proxy settings and HF_ENDPOINT, and try again." + held


@dataclass(eq=False, repr=False)
class HubRateLimited(OstinatoError, ConnectionError):
    """Hugging Face was asked too often; `retry_after` is the wait in seconds that it names, if any."""

    repo: str
    retry_after: int | None
    token_sent: bool

    def message(self) -> str:
        return f"Hugging Face was asked too often and refuses to answer about {self.repo} for now"

    @property
    def remedy(self) -> str:
        wait = "a few minutes" if self.retry_after is None else f"{self.retry_after} seconds"
        more = "" if self.token_sent else " An HF_TOKEN raises the limit."
        return f"Wait {wait} and try again.{more}"


@dataclass(eq=False, repr=False)
class HubDownloadFailed(OstinatoError, ConnectionError):
    """The download of `file` from `repo` broke off, for the `reason`."""

    repo: str
    file: str
    reason: str

    def message(self) -> str:
        return f"the download of {_clip(self.file)} from {self.repo} broke off: {_clip(self.reason)}"

    @property
    def remedy(self) -> str:
        return "Try again: the files that are complete are kept."


@dataclass(eq=False, repr=False)
class HubDiskFull(NotEnoughDiskSpace):
    """Hugging Face's cache `where` has no room for the files."""

    @property
    def remedy(self) -> str:
        return "Free some space, or let HF_HOME name a folder on another disk."


@dataclass(eq=False, repr=False)
class HubCacheNotWritable(CacheNotWritable):
    """Hugging Face's cache `where` cannot be written."""

    @property
    def remedy(self) -> str:
        return "Let HF_HOME name a folder that you can write."


_LISTED = 40  # choices that a remedy names


def _listed(choices: tuple[HubChoice, ...]) -> str:
    more = f" and {len(choices) - _LISTED} more" if len(choices) > _LISTED else ""
    return ", ".join(map(str, choices[:_LISTED])) + more


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _clip(text: str) -> str:
    """A stranger's text as a terminal can bear it."""
    shown = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text[:400])
    return shown if len(shown) <= 200 else shown[:197] + "..."
