"""Downloads that resume after a broken connection, are checked against a digest, and are complete or absent."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ludus.store.files import UNREADABLE, StoreError, atomic_write, exclusive, make_folder, sync_folder

SCHEMES = ("http", "https")
TIMEOUT_S = 30.0  # seconds without data after which a server is given up; also for the head of an answer as a whole
SLOWEST = 1_000.0  # bytes a second, on average after `TIMEOUT_S`: with less, a server is given up
_SMALL = 1 << 20
_CHUNK = 1 << 20
_RETRIED_CODES = frozenset({408, 425, 429, 500, 502, 503, 504})
_HEX_DIGEST = re.compile(r"\b[0-9a-fA-F]{64}\b")
_CHANGED = "the file has changed, from the start again"
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-\d+|\*)/(\d+)")
Report = Callable[[str], None]
Advance = Callable[[int, int | None], None]


class DownloadError(StoreError):
    """A file that could not be fetched or does not match its digest."""


class RefusedError(DownloadError):
    """The server answered with an error."""

    def __init__(self, url: str, error: urllib.error.HTTPError) -> None:
        super().__init__(f"{url}: the server says {error.code} {error.reason}")
        self.code = error.code


class BrokenOffError(Exception):
    """An interrupted transfer that is worth another attempt. The part that has arrived is kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DownloadRules:
    """Limits of a download."""

    max_bytes: int = 8 << 30
    timeout_s: float = TIMEOUT_S
    attempts: int = 5
    first_wait_s: float = 1.0  # wait before the second attempt; doubled for each further one


@dataclass(frozen=True, kw_only=True, slots=True)
class Download:
    path: Path
    sha256: str
    checked_by: str | None  # the source of the digest that the file was checked against; None: unchecked


def download(
    url: str,
    *,
    sha256: str | None = None,
    rules: DownloadRules | None = None,
    folder: Path | None = None,
    report: Report = lambda _: None,
    advance: Advance = lambda done, total: None,
) -> Download:
    """Fetch a file into `folder` (default: the cache). The caller removes it after use. Without `sha256`, a digest is
    looked for at URL.sha256. `report` is called with every failed attempt, `advance` with the bytes so far and the
    total."""
    rules = rules or DownloadRules()
    # A download is kept there until it is in a model pool, so that it can be resumed.
    folder = folder or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ludus" / "downloads"
    require_web(url)
    make_folder(folder)
    path = folder / hashlib.sha256(url.encode()).hexdigest()[:32]
    checked_by = "the given digest" if sha256 is not None else None
    if sha256 is None:
        parts = urlsplit(url)
        beside = urlunsplit(parts._replace(path=f"{parts.path}.sha256"))
        sha256 = _digest_beside(beside, rules, report)
        checked_by = beside if sha256 is not None else None
    with exclusive(path.with_suffix(".lock")):
        if sha256 is not None and path.exists() and file_digest(path) == sha256:
            return Download(path=path, sha256=sha256, checked_by=checked_by)
        part = _Part(url, path.with_suffix(".part"), rules, advance)
        part.fetch(report, can_be_checked=sha256 is not None)
        found = file_digest(part.path)
        if sha256 is not None and found != sha256:
            part.remove()
            raise DownloadError(f"{url} has digest sha256:{found}, expected sha256:{sha256}; it is removed")
        part.finish(path)
    return Download(path=path, sha256=found, checked_by=checked_by)


class _Pace:
    """Gives up a server that sends a little now and then, and so never runs into a timeout."""

    def __init__(self, timeout_s: float) -> None:
        self._began = time.monotonic()
        self._timeout_s = timeout_s

    def require(self, received: int) -> None:
        """Raises `BrokenOffError` if these bytes have taken too long."""
        passed = time.monotonic() - self._began
        if passed > self._timeout_s and received < passed * SLOWEST:
            raise BrokenOffError(f"the server is too slow: {received:,} bytes in {passed:.0f} s")


class _Part:
    """A partial download."""

    def __init__(self, url: str, path: Path, rules: DownloadRules, advance: Advance) -> None:
        self.url = url
        self.path = path
        self._note_path = path.with_suffix(".json")
        self._rules = rules
        self._advance = advance

    @property
    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def fetch(self, report: Report, *, can_be_checked: bool) -> None:
        """Fetch the file in several attempts. Without a digest to check the result, a partial download is continued
        only if the response would show that the file has changed."""
        attempts = self._rules.attempts
        for number in range(1, attempts + 1):
            try:
                self._resume(can_be_checked)
                return
            except BrokenOffError as error:
                if number == attempts:
                    kept = f"; {self.size:,} bytes are kept, the same command goes on there" if self.size else ""
                    text = f"{self.url} could not be fetched in {number} attempts: {error}{kept}"
                    raise DownloadError(text) from error
                wait_s = self._rules.first_wait_s * 2 ** (number - 1)
                report(f"{error}; attempt {number + 1} of {attempts} in {wait_s:g} s")
                time.sleep(wait_s)

    def _resume(self, can_be_checked: bool) -> None:
        note = self._note()
        have = self.size if note is not None and (note.etag or note.modified or can_be_checked) else 0
        if note is not None and have and have == note.length:
            return  # complete, but the process ended before the check
        headers = {"Range": f"bytes={have}-"} if have else {}
        strong = note is not None and note.etag and not note.etag.startswith("W/")
        if have and note is not None and (condition := note.etag if strong else note.modified):
            headers["If-Range"] = condition
        try:
            with network(self.url):
                answer = open_web(self.url, headers, self._rules.timeout_s)
        except RefusedError as error:
            if error.code == http.client.REQUESTED_RANGE_NOT_SATISFIABLE and have:
                self.remove()
                raise BrokenOffError(_CHANGED) from None
            raise
        with answer:
            self._take(answer, note, have)

    def _take(self, answer: http.client.HTTPResponse, note: _PartNote | None, have: int) -> None:
        start, length = _extent(answer)
        now = _PartNote(
            url=self.url,
            etag=answer.headers.get("ETag", ""),
            modified=answer.headers.get("Last-Modified", ""),
            length=length,
        )
        if start:
            if start != have or note is None or not note.is_continued_by(now):
                self.remove()
                raise BrokenOffError(_CHANGED)
        else:  # the whole file: the first request, a changed file, or a server without ranges
            self.remove()
            atomic_write(self._note_path, msgspec.json.encode(now))
        if length is not None and length > self._rules.max_bytes:
            self.remove()
            raise DownloadError(f"{self.url} has {length:,} bytes, the limit is {self._rules.max_bytes:,}")
        try:
            with self.path.open("ab") as file:
                size = self._copy(answer, file, start, length)
        except OSError as error:  # of the disk: `network` converts those of the network
            raise OSError(error.errno, f"cannot write: {error.strerror}", str(self.path)) from error
        if length is not None and size != length:
            raise BrokenOffError(f"the connection ended after {size:,} of {length:,} bytes")

    def _copy(self, answer: http.client.HTTPResponse, file: IO[bytes], size: int, length: int | None) -> int:
        pace, before = _Pace(self._rules.timeout_s), size
        while True:
            with network(self.url):
                chunk = answer.read1(_CHUNK)
            if not chunk:
                break
            size += len(chunk)
            pace.require(size - before)
            if size > self._rules.max_bytes:
                self.remove()
                raise DownloadError(f"{self.url} has more than the limit of {self._rules.max_bytes:,} bytes")
            file.write(chunk)
            self._advance(size, length)
        file.flush()
        os.fsync(file.fileno())
        return size

    def _note(self) -> _PartNote | None:
        try:
            note = msgspec.json.decode(self._note_path.read_bytes(), type=_PartNote)
        except (FileNotFoundError, *UNREADABLE):
            return None
        return note if note.url == self.url else None

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note_path.unlink(missing_ok=True)

    def finish(self, path: Path) -> None:
        os.replace(self.path, path)
        self._note_path.unlink(missing_ok=True)
        sync_folder(path.parent)


class _PartNote(msgspec.Struct, frozen=True, kw_only=True):
    """The version of the file that a partial download belongs to, stored beside it."""

    url: str
    etag: str
    modified: str
    length: int | None

    def is_continued_by(self, answer: _PartNote) -> bool:
        """A partial response may omit the headers that the request was conditional on."""
        return (
            answer.etag in ("", self.etag) and answer.modified in ("", self.modified) and answer.length == self.length
        )


def _extent(answer: http.client.HTTPResponse) -> tuple[int, int | None]:
    """The offset of the body in the file, and the length of the file."""
    if answer.status == http.client.PARTIAL_CONTENT:
        found = _CONTENT_RANGE.fullmatch(answer.headers.get("Content-Range", "").strip())
        if found is None or found[1] is None:
            raise BrokenOffError("the server sends a part without saying which")
        return int(found[1]), int(found[2])
    length = answer.headers.get("Content-Length", "")
    return 0, int(length) if length.isdecimal() else None


def _digest_beside(url: str, rules: DownloadRules, report: Report) -> str | None:
    try:
        text = fetch_text(url, rules.timeout_s)
    except DownloadError as error:
        if not isinstance(error, RefusedError):
            report(f"no digest beside it: {error}")
        return None
    found = _HEX_DIGEST.findall(text)
    if len(found) != 1:
        raise DownloadError(f"{url} holds {len(found)} digests, not one; say which with --digest")
    return str(found[0]).lower()


def is_url(text: str) -> bool:
    return text.lower().startswith(tuple(f"{scheme}://" for scheme in SCHEMES))


def require_web(url: str) -> None:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise DownloadError(f"{url!r} is not a valid address: {error}") from None
    if parts.scheme not in SCHEMES or not parts.hostname:
        raise DownloadError(f"{url!r} is not the address of a file: write http://... or https://...")


def parse_digest(text: str) -> str:
    """The 64 hex digits of `sha256:DIGITS` or `DIGITS`."""
    digits = text.strip().removeprefix("sha256:").lower()
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise DownloadError(f"digest {text!r} is not sha256: and 64 hex digits")
    return digits


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch_text(url: str, timeout_s: float = TIMEOUT_S) -> str:
    """Fetch a small text file."""
    require_web(url)
    try:
        pace, content = _Pace(timeout_s), b""
        with network(url), open_web(url, {}, timeout_s) as answer:
            while len(content) <= _SMALL and (chunk := answer.read1(_CHUNK)):
                content += chunk
                pace.require(len(content))
    except BrokenOffError as error:
        raise DownloadError(f"{url} cannot be read: {error}") from error
    if len(content) > _SMALL:
        raise DownloadError(f"{url} has more than {_SMALL:,} bytes, too many for what it should be")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise DownloadError(f"{url} is not text in UTF-8") from None


def open_web(url: str, headers: dict[str, str], timeout_s: float) -> http.client.HTTPResponse:
    """Raises TimeoutError if the head of the answer, or those of redirects, take longer than `timeout_s` together."""
    request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers})
    connected = _Connected()
    too_slow = threading.Timer(timeout_s, connected.hang_up)
    too_slow.start()
    try:
        opener = urllib.request.build_opener(_SafeRedirects, _Web(connected), _SecureWeb(connected))
        answer: http.client.HTTPResponse = opener.open(request, timeout=timeout_s)
    except (OSError, http.client.HTTPException) as error:
        if connected.hung_up:
            raise TimeoutError from error
        raise
    finally:
        too_slow.cancel()
        connected.close()
    if connected.hung_up:  # the end of the connection passes for the end of the head
        answer.close()
        raise TimeoutError
    return answer


class _Connected:
    """The sockets of a request. A timer hangs them up: the timeout of a socket begins again with every byte. They are
    duplicates, because TLS takes the sockets themselves over."""

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self.hung_up = False

    def connect(self, *args: Any, **options: Any) -> socket.socket:
        connected = socket.create_connection(*args, **options)
        self._sockets.append(connected.dup())
        return connected

    def hang_up(self) -> None:
        self.hung_up = True
        for connected in self._sockets:
            with suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for connected in self._sockets:
            connected.close()

    def through(self, kind: type[http.client.HTTPConnection]) -> Callable[..., http.client.HTTPConnection]:
        """Connections of this kind, with sockets that can be hung up."""

        def make(*args: Any, **options: Any) -> http.client.HTTPConnection:
            connection: Any = kind(*args, **options)
            connection._create_connection = self.connect
            made: http.client.HTTPConnection = connection
            return made

        return make


class _Web(urllib.request.HTTPHandler):
    def __init__(self, connected: _Connected) -> None:
        super().__init__()
        self._make: Any = connected.through(http.client.HTTPConnection)

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._make, req)


class _SecureWeb(urllib.request.HTTPSHandler):
    def __init__(self, connected: _Connected) -> None:
        super().__init__()
        self._make: Any = connected.through(http.client.HTTPSConnection)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._make, req)


@contextmanager
def network(url: str) -> Iterator[None]:
    """Turn network errors into `BrokenOffError` if another attempt may help, else into `DownloadError`."""
    try:
        yield
    except urllib.error.HTTPError as error:
        error.close()
        if error.code in _RETRIED_CODES:
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


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https only, and never from https to http."""

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
