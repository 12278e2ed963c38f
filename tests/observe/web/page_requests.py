"""Requests as a browser or somebody hostile sends them, and an app to send them to."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.types import ASGIApp

from ludus.observe.web.page_server import PageAccess, PageServer


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    """Names in small letters."""
    text: str


@contextmanager
def served(app: ASGIApp, access: PageAccess | None = None) -> Iterator[PageServer]:
    server = PageServer(app, access or PageAccess())
    server.start()
    try:
        yield server
    finally:
        server.close()


def ask(server: PageServer, path: str, method: str = "GET", body: str = "", **headers: str) -> Answer:
    """`headers`: an underscore stands for a hyphen."""
    asking = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    try:
        asking.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = asking.getresponse()
        found = {name.lower(): value for name, value in answer.getheaders()}
        return Answer(answer.status, found, answer.read().decode())
    finally:
        asking.close()
