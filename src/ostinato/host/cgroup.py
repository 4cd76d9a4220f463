"""The control groups this process lives in: the folders where the kernel writes its limits.

Format: cgroups(7), proc_pid_mountinfo(5).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One control group: its hierarchy's `version` (1 or 2) and the `folder` of its files."""

    version: int
    folder: Path

    def read(self, name: str) -> str | None:
        """The stripped text of the file `name`, or None where this group has none."""
        return read_text(self.folder / name)

    def read_int(self, name: str) -> int | None:
        """The number in the file `name`; None where there is none, or it says `max`."""
        text = self.read(name)
        try:
            return int(text) if text is not None else None
        except ValueError:
            return None


def groups(controller: str, root: Path) -> list[Cgroup]:
    """The groups that limit this process by `controller` ("cpu", "memory"), its own first, then those above.

    A limit anywhere on the way up holds. `root` is where the system's `/proc` and `/sys` are looked for.
    """
    own = _own_paths(controller, root)
    found: list[Cgroup] = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, separator, right = line.partition(" - ")
        mount, filesystem = left.split(" "), right.split(" ")
        if not separator or len(mount) < 5 or len(filesystem) < 3:
            continue
        if filesystem[0] == "cgroup2":
            version = 2
        elif filesystem[0] == "cgroup" and controller in filesystem[2].split(","):
            version = 1
        else:
            continue
        if version not in own:
            continue
        top = root / _unescape(mount[4]).lstrip("/")
        folder = top / _below(own[version], _unescape(mount[3]))
        while True:
            if folder.is_dir():
                found.append(Cgroup(version, folder))
            if folder == top:
                break
            folder = folder.parent
    return found


def read_text(path: Path) -> str | None:
    """The stripped text of a kernel file, or None when it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None


def _own_paths(controller: str, root: Path) -> dict[int, str]:
    """This process's path inside the hierarchy of each version."""
    paths: dict[int, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        hierarchy, controllers, path = parts
        if hierarchy == "0" and not controllers:
            paths[2] = path
        elif controller in controllers.split(","):
            paths[1] = path
    return paths


def _below(path: str, mount_root: str) -> PurePosixPath:
    """`path` relative to the part of the hierarchy that is mounted.

    A container sees its own group as the mount's root, with a path that may lie outside what is mounted
    (`/../other`, or the host's full path): the mount's root is then the group to read.
    """
    inside = PurePosixPath(path)
    if ".." in inside.parts or not inside.is_relative_to(mount_root):
        return PurePosixPath()
    return inside.relative_to(mount_root)


def _unescape(text: str) -> str:
    """Undoes the octal escapes of mountinfo."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
