"""A Hugging Face of the test's own on 127.0.0.1: the part of its HTTP interface that downloads use."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import socket
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_theRightOneOfTheTest"
SIGNATURE = "s1gnatureOfTheTest"


@dataclass
class Repo:
    """Files by commit, commits by branch; `needs` is "", "gated" or "private"."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    needs: str = ""


@dataclass
class Seen:
    method: str
    path: str
    headers: dict[str, str]  # by their names in lower case
    status: int


class Hub:
    """The server; `status` answers everything with one status, `cuts` breaks off a file's next answers."""

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.seen: list[Seen] = []
        self.status: int | None = None
        self.answer_headers: dict[str, str] = {}
        self.cuts: Counter[str] = Counter()
        self.extra_siblings: list[dict[str, object]] = []
        self.commit_name: str | None = None
        self.stall = threading.Event()
        self.stalls = False
        self.connections: list[socket.socket] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}"

    @property
    def elsewhere(self) -> str:
        """The same server under another name."""
        return f"http://localhost:{self.server.server_port}"

    def publish(self, repo: str, files: dict[str, bytes], *, branch: str = "main", needs: str = "") -> str:
        """Puts `files` on a branch as its newest commit, whose hash is returned."""
        text = repr((repo, branch, sorted(files.items())))
        commit = hashlib.sha1(text.encode()).hexdigest()
        kept = self.repos.setdefault(repo, Repo())
        kept.commits[commit], kept.branches[branch], kept.needs = files, commit, needs
        return commit

    def close(self) -> None:
        """From here on nobody listens; clients' open connections end as well."""
        self.stall.set()
        self.server.shutdown()
        self.server.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def asked(self, method: str = "", word: str = "") -> list[Seen]:
        return [seen for seen in self.seen if method in seen.method and word in seen.path]

    def _handler(hub):  # noqa: N805
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args: object) -> None:
                pass

            def setup(self) -> None:
                super().setup()
                hub.connections.append(self.connection)

            def do_HEAD(self) -> None:
                self.answer()

            do_GET = do_HEAD  # noqa: N815

            def answer(self) -> None:
                if hub.stalls:
                    hub.stall.wait(30)
                path = unquote(urlsplit(self.path).path)
                if hub.status is not None:
                    return self.send(hub.status, b"", **hub.answer_headers)
                if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/(.+))?", path):
                    return self.info(match[1], match[2] or "main")
                if match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/(.+?)/(.+)", path):
                    return self.resolve(*match.groups())
                if match := re.fullmatch(r"/cdn/(.+)", path):
                    return self.blob(match[1])
                return self.send(404, b"")

            def repo(self, name: str, *, listing: bool) -> Repo | None:
                """The repository if the one asking may have it; else it is answered here."""
                auth = self.headers.get("Authorization")
                if auth is not None and auth != f"Bearer {TOKEN}":
                    message = "Invalid credentials in Authorization header"
                    self.send(401, b"", **{"X-Error-Message": message})
                    return None
                found = hub.repos.get(name)
                if found is None or (found.needs == "private" and auth is None):
                    self.send(404 if auth else 401, b"", **{"X-Error-Code": "RepoNotFound"})
                    return None
                # Anyone may see what a gated repository has.
                if (
                    found.needs in {"gated", "review"}
                    and not listing
                    and (not auth or found.needs == "review")
                ):
                    message = f"Access to model {name} is restricted"
                    headers = {"X-Error-Code": "GatedRepo", "X-Error-Message": message}
                    self.send(403 if auth else 401, b"", **headers)
                    return None
                return found

            def files(self, repo: Repo, revision: str) -> tuple[str, dict[str, bytes]] | None:
                commit = repo.branches.get(revision, revision)
                if commit not in repo.commits:
                    self.send(404, b"", **{"X-Error-Code": "RevisionNotFound"})
                    return None
                return commit, repo.commits[commit]

            def info(self, name: str, revision: str) -> None:
                repo = self.repo(name, listing=True)
                found = repo and self.files(repo, revision)
                if not found:
                    return
                siblings = [{"rfilename": file, "size": len(data)} for file, data in found[1].items()]
                commit = found[0] if hub.commit_name is None else hub.commit_name
                value = {"id": name, "sha": commit, "siblings": siblings + hub.extra_siblings}
                self.send(200, json.dumps(value).encode())

            def resolve(self, name: str, revision: str, file: str) -> None:
                repo = self.repo(name, listing=False)
                found = repo and self.files(repo, revision)
                if not found:
                    return
                commit, files = found
                if file not in files:
                    self.send(404, b"", **{"X-Error-Code": "EntryNotFound"})
                    return
                digest = hashlib.sha256(files[file]).hexdigest()
                headers = {"X-Repo-Commit": commit, "ETag": f'"{digest}"'}
                if file.endswith((".gguf", ".safetensors")):
                    # Large files lie on another host, behind a signed address.
                    headers |= {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(files[file]))}
                    headers["Location"] = f"{hub.elsewhere}/cdn/{name}/{commit}/{file}?Signature={SIGNATURE}"
                    self.send(302, b"", **headers)
                else:
                    self.send(200, files[file], **headers)

            def blob(self, path: str) -> None:
                org, name, commit, file = path.split("/", 3)
                data = hub.repos[f"{org}/{name}"].commits[commit][file]
                asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
                start = int(asked[1]) if asked else 0
                end = start + (len(data) - start) // 2 if hub.cuts[file] > 0 else len(data)
                headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if asked else {}
                self.note(206 if asked else 200)
                self.send_response(206 if asked else 200)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Disposition", f'attachment; filename="{file.rpartition("/")[2]}";')
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data[start:end])
                    if end < len(data):
                        hub.cuts[file] -= 1
                        self.close_connection = True

            def note(self, status: int) -> None:
                hub.seen.append(
                    Seen(
                        self.command,
                        unquote(self.path),
                        {name.lower(): value for name, value in self.headers.items()},
                        status,
                    )
                )

            def send(self, status: int, body: bytes, **headers: str) -> None:
                self.note(status)
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

        return Handler
