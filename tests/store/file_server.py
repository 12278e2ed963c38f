"""A web server on this machine that behaves as badly as it is told to."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """Serves one content at every path of `files`; tests change what it does between requests."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    etag: bool = True
    knows_ranges: bool = True
    knows_length: bool = True
    break_after: list[int] = field(default_factory=list)
    """Bytes of the body after which the connection ends, one number per request; then it holds."""
    statuses: list[int] = field(default_factory=list)
    """Errors to answer with first, one per request of a file."""
    redirects: dict[str, str] = field(default_factory=dict)
    requests: list[tuple[str, str | None, int]] = field(default_factory=list)
    """(path, Range, status) of every request."""


class _Handler(BaseHTTPRequestHandler):
    files: FileServer

    def do_GET(self) -> None:
        files, asked = self.files, self.headers.get("Range")
        content = files.files.get(self.path)
        if self.path in files.redirects:
            self._head(302, asked, Location=files.redirects[self.path])
        elif content is None:
            self._head(404, asked)
        elif files.statuses:
            self._head(files.statuses.pop(0), asked)
        else:
            self._send(content, asked)

    def _send(self, content: bytes, asked: str | None) -> None:
        files = self.files
        version = f'"{hashlib.sha256(content).hexdigest()[:8]}"'
        same = self.headers.get("If-Range") in (None, version)
        start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and files.knows_ranges and same else 0
        headers = {"ETag": version} if files.etag else {}
        if start >= len(content):
            self._head(416, asked)
            return
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        if files.knows_length:
            headers["Content-Length"] = str(len(content) - start)
        self._head(206 if start else 200, asked, **headers)
        body = content[start:]
        self.wfile.write(body[: files.break_after.pop(0)] if files.break_after else body)

    def _head(self, status: int, asked: str | None, **headers: str) -> None:
        self.files.requests.append((self.path, asked, status))
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@contextmanager
def serving() -> Iterator[FileServer]:
    files = FileServer()
    handler = type("Handler", (_Handler,), {"files": files})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        files.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield files
        finally:
            server.shutdown()
            thread.join()
