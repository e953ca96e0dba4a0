"""A hub on loopback with the folders of this machine: the routes that `huggingface_hub` needs, and a hub's faults."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TOKEN = "hf_reader"  # may read gated repositories


@dataclass
class Repository:
    """A repository with the branch `main` and one commit."""

    folder: Path
    is_gated: bool = False
    base: str = ""  # a repository; this one has its model, quantized
    cut: set[str] = field(default_factory=set)  # the first answer with such a file lacks its last megabyte
    damaged: set[str] = field(default_factory=set)  # such a file is sent with another last byte
    claimed_bytes: dict[str, int] = field(default_factory=dict)  # in place of the sizes of files
    lies: dict[str, Any] = field(default_factory=dict)  # in place of values of every description of a file
    commit: object = COMMIT  # that `main` names
    headers: dict[str, str] = field(default_factory=dict)  # of answers with files
    missing: set[str] = field(default_factory=set)  # such a file is listed, but not found
    listed: set[str] = field(default_factory=set)  # names of further files
    revisions: set[str] = field(default_factory=set)  # further names of the commit
    sent_ranges: list[str] = field(default_factory=list)  # the Range headers of requests

    def entry(self, path: Path) -> dict[str, Any]:
        """Return the description of a file: all but JSON is in the large-file storage, as weights on the hub."""
        name = path.relative_to(self.folder).as_posix()
        size = self.claimed_bytes.get(name, path.stat().st_size)
        entry: dict[str, Any] = {"type": "file", "path": name, "rfilename": name, "size": size}
        entry |= {"oid": _blob_id(path), "blobId": _blob_id(path)}
        if path.suffix != ".json":
            entry["lfs"] = {"sha256": _sha256(path), "oid": _sha256(path), "size": size, "pointerSize": 134}
        return entry | self.lies

    def entries(self) -> list[dict[str, Any]]:
        """Return the description of each file."""
        further = [{"type": "file", "path": name, "rfilename": name, "size": 9} for name in sorted(self.listed)]
        return [*further, *(self.entry(path) for path in sorted(self.folder.rglob("*.*")))]


@contextmanager
def stand_in_hub(repositories: dict[str, Repository]) -> Iterator[str]:
    """Serve repositories by `OWNER/NAME`, and yield the URL for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            kind, _, rest = unquote(url.path).strip("/").partition("/models")
            file = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", unquote(url.path))
            if file is not None:
                self._answer_file(repositories[file[1]], file[2])
            elif kind != "api":  # what else the library asks for
                self._answer(404, b"{}")
            elif rest:
                self._answer_api(*rest.strip("/").split("/"))
            else:
                self._answer_search(parse_qs(url.query)["filter"])

        do_HEAD = do_GET

        def _answer_search(self, filters: list[str]) -> None:
            found = [
                {"id": name} for name, item in repositories.items() if f"base_model:quantized:{item.base}" in filters
            ]
            self._answer(200, json.dumps(found).encode())

        def _answer_api(self, owner: str, name: str, what: str, *path: str) -> None:
            revision = path[0] if what == "tree" else "/".join(path)
            repository = repositories.get(f"{owner}/{name}")
            if repository is None:
                self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif revision not in ("main", COMMIT, repository.commit, *repository.revisions):
                self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif what == "revision":
                info = {"id": f"{owner}/{name}", "sha": repository.commit, "siblings": repository.entries()}
                self._answer(200, json.dumps(info).encode())
            else:  # tree
                self._answer(200, json.dumps(repository.entries()).encode())

        def _answer_file(self, repository: Repository, file: str) -> None:
            if repository.is_gated and self.headers["Authorization"] != f"Bearer {TOKEN}":
                return self._answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if file in repository.missing:
                return self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"} | repository.headers)
            path = repository.folder / file
            entry, content = repository.entry(path), path.read_bytes()
            etag = entry["lfs"]["sha256"] if "lfs" in entry else entry["oid"]
            if file in repository.damaged:
                content = content[:-1] + bytes([content[-1] ^ 1])
            headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"} | repository.headers
            start = re.fullmatch(r"bytes=(\d+)-\d*", self.headers["Range"] or "")
            if start is None:
                return self._answer(200, content, headers, is_cut=file in repository.cut)
            repository.sent_ranges.append(start[0])
            repository.cut.discard(file)
            first = int(start[1])
            headers["Content-Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self._answer(206, content[first:], headers)

        def _answer(
            self, status: int, content: bytes, headers: dict[str, str] | None = None, *, is_cut: bool = False
        ) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content[: -(1 << 20)] if is_cut else content)
                self.close_connection = self.close_connection or is_cut

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def share(blob: Path) -> Path:
    """Move a file of a cache into the store of all its repositories, as a download by hf_xet does; return its place.

    The store names it by a hash of another kind.
    """
    stored = blob.parents[2] / "blobs" / "ab" / ("ab" * 32)
    stored.parent.mkdir(parents=True)
    blob.rename(stored)
    blob.symlink_to(Path("../../blobs/ab", stored.name))
    return stored


@cache
def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@cache
def _blob_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
