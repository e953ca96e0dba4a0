"""A hub on loopback with the folders of this machine: the routes that `huggingface_hub` needs for a download."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextmanager
def stand_in_hub(repositories: dict[str, Path]) -> Iterator[str]:
    """Serve folders as repositories, each with the branch `main` and one commit; yield the URL for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            kind, _, rest = unquote(urlsplit(self.path).path).strip("/").partition("/models/")
            if kind == "api":
                self._answer_api(*rest.split("/"))
            else:  # OWNER/NAME/resolve/COMMIT/FILE
                owner, name, _, _, file = f"{kind}{rest}".split("/", 4)
                self._answer_file(repositories[f"{owner}/{name}"] / file)

        do_HEAD = do_GET

        def _answer_api(self, owner: str, name: str, what: str, revision: str, *_: str) -> None:
            folder = repositories.get(f"{owner}/{name}")
            if folder is None:
                self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif revision not in ("main", COMMIT):
                self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
            elif what == "revision":
                self._answer(200, json.dumps({"id": f"{owner}/{name}", "sha": COMMIT, "siblings": []}).encode())
            else:  # tree
                self._answer(200, json.dumps([_entry(path, folder) for path in sorted(folder.rglob("*.*"))]).encode())

        def _answer_file(self, path: Path) -> None:
            content = path.read_bytes()
            self._answer(200, content, {"ETag": f'"{_blob_id(path)}"', "X-Repo-Commit": COMMIT})

        def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _entry(path: Path, folder: Path) -> dict[str, object]:
    name = path.relative_to(folder).as_posix()
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": _blob_id(path)}


def _blob_id(path: Path) -> str:
    content = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()
