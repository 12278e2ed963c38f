"""Reading from the web: what may be asked for, and what goes wrong in words."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO
from urllib.parse import urlsplit

from ludus.store.files import StoreError

SCHEMES = ("http", "https")
TIMEOUT_S = 30.0
"""Longest silence of a server."""
_SMALL = 1 << 20
_WORTH_A_RETRY = frozenset({408, 425, 429, 500, 502, 503, 504})


class DownloadError(StoreError):
    """A file that could not be fetched, or is not what was asked for."""


class RefusedError(DownloadError):
    """The server answered with an error."""

    def __init__(self, url: str, error: urllib.error.HTTPError) -> None:
        super().__init__(f"{url}: the server says {error.code} {error.reason}")
        self.code = error.code


class BrokenOffError(Exception):
    """Worth another attempt; what has arrived is kept."""


def is_url(text: str) -> bool:
    return text.lower().startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def require_web(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise DownloadError(f"{url!r} is not a valid address: {error}") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise DownloadError(f"{url!r} is not the address of a file: write http://... or https://...")


def fetch_text(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """A small text file, at once."""
    require_web(url)
    try:
        with network(url), open_web(url, {}, timeout_s) as answer:
            content: bytes = answer.read(_SMALL + 1)
    except BrokenOffError as error:
        raise DownloadError(f"{url} cannot be read: {error}") from error
    if len(content) > _SMALL:
        raise DownloadError(f"{url} has more than {_SMALL:,} bytes, too many for what it should be")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise DownloadError(f"{url} is not text in UTF-8") from None


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to the web only, and never from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        schemes = SCHEMES if req.type == "http" else ("https",)
        if urlsplit(newurl).scheme not in schemes:
            raise DownloadError(f"{req.full_url} leads on to {newurl}, which is not {' or '.join(schemes)}")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def open_web(url: str, headers: dict[str, str], timeout_s: float) -> http.client.HTTPResponse:
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers})
    answer: http.client.HTTPResponse = urllib.request.build_opener(_SafeRedirects).open(
        request, timeout=timeout_s
    )
    return answer


@contextmanager
def network(url: str) -> Iterator[None]:
    """What the network does wrong, by whether another attempt may help."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _WORTH_A_RETRY:
            raise BrokenOffError(f"the server says {error.code} {error.reason}") from None
        raise RefusedError(url, error) from None
    except (http.client.InvalidURL, UnicodeError) as error:
        raise DownloadError(f"{url!r} is not a valid address: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        raise BrokenOffError(_why(error)) from error


def _why(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error
    if isinstance(reason, TimeoutError):
        return "the server does not answer in time"
    return str(getattr(reason, "strerror", None) or reason or type(reason).__name__)
