"""Serves a page from a thread of its own, behind the guard of `security`."""

from __future__ import annotations

import socket
import threading

import uvicorn
from starlette.types import ASGIApp

from ludus.observe.web.security import Access, guarded


class PageServer:
    """Listens when it is made and serves from `start` until `close`."""

    def __init__(self, app: ASGIApp, access: Access, *, port: int = 0) -> None:
        """`port` 0: any that is free."""
        self._listening = _listen(access.host, port)
        self.port: int = self._listening.getsockname()[1]
        self.url = f"http://{_shown_host(access.host)}:{self.port}/"
        self._server = uvicorn.Server(
            uvicorn.Config(
                guarded(app, access),
                log_config=None,  # its own would replace every handler of the process, and close some of them
                log_level="critical",
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=2,
            )
        )
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [self._listening]}, name="page server", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Streams of events must have ended, or are cut after two seconds."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join()
        self._listening.close()


def _shown_host(host: str) -> str:
    """As it stands in an address that works on this machine."""
    if host in ("0.0.0.0", "::"):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _listen(host: str, port: int) -> socket.socket:
    try:
        [(family, kind, protocol, _, address), *_] = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except socket.gaierror as error:
        raise OSError(error.errno, f"cannot serve a page there: {error.strerror}", f"host {host}") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)
    except OSError as error:
        listening.close()
        place = f"{host} port {port}"
        raise OSError(error.errno, f"cannot serve a page there: {error.strerror}", place) from None
    return listening
