"""Downloads from a server that breaks off, changes its mind, lies and is not there."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from file_server import FileServer, serving

from ludus.store.downloads import Download, DownloadError, DownloadRules, download, fetch_text

CONTENT = bytes(range(256)) * 400
DIGEST = hashlib.sha256(CONTENT).hexdigest()
QUICK = DownloadRules(first_wait_s=0.0, timeout_s=5.0, attempts=3)
ONCE = DownloadRules(first_wait_s=0.0, timeout_s=5.0, attempts=1)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as files:
        files.files["/model"] = CONTENT
        yield files


def fetch(server: FileServer, folder: Path, rules: DownloadRules = QUICK, sha256: str | None = None) -> Download:
    return download(f"{server.url}/model", sha256=sha256, rules=rules, folder=folder)


def ranges(server: FileServer) -> list[str | None]:
    return [asked for path, asked, _ in server.requests if path == "/model"]


def leftovers(folder: Path) -> list[str]:
    return sorted(path.suffix for path in folder.iterdir() if path.suffix != ".lock")


def test_a_whole_file_arrives_and_nothing_else_is_left(server: FileServer, tmp_path: Path) -> None:
    fetched = fetch(server, tmp_path)
    assert fetched.path.read_bytes() == CONTENT
    assert (fetched.sha256, fetched.checked_by) == (DIGEST, None)
    assert leftovers(tmp_path) == [""]


def test_a_broken_download_goes_on_in_the_same_command(server: FileServer, tmp_path: Path) -> None:
    server.break_after = [40_000, 10_000]
    told: list[str] = []
    fetched = download(f"{server.url}/model", rules=QUICK, folder=tmp_path, report=told.append)
    assert fetched.path.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=40000-", "bytes=50000-"]
    assert "ended after 40,000 of 102,400 bytes; attempt 2 of 3" in told[0]


def test_a_broken_download_goes_on_in_the_next_command(server: FileServer, tmp_path: Path) -> None:
    server.break_after = [40_000]
    with pytest.raises(DownloadError, match="40,000 bytes are kept, the same command goes on there"):
        fetch(server, tmp_path, ONCE)
    assert leftovers(tmp_path) == [".json", ".part"]
    assert fetch(server, tmp_path).path.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=40000-"]


def test_a_file_that_changed_meanwhile_starts_again(server: FileServer, tmp_path: Path) -> None:
    server.break_after = [40_000]
    with pytest.raises(DownloadError):
        fetch(server, tmp_path, ONCE)
    server.files["/model"] = CONTENT[::-1]
    assert fetch(server, tmp_path).path.read_bytes() == CONTENT[::-1]


def test_a_shorter_file_than_what_is_there_starts_again(server: FileServer, tmp_path: Path) -> None:
    server.etag = False
    server.break_after = [40_000]
    with pytest.raises(DownloadError):
        fetch(server, tmp_path, ONCE, DIGEST)
    short = CONTENT[:30_000]
    server.files["/model"] = short
    fetched = fetch(server, tmp_path, QUICK, hashlib.sha256(short).hexdigest())
    assert fetched.path.read_bytes() == short


def test_a_change_that_only_the_length_shows_is_seen(server: FileServer, tmp_path: Path) -> None:
    server.etag = False
    server.break_after = [40_000]
    with pytest.raises(DownloadError):
        fetch(server, tmp_path, ONCE, DIGEST)
    longer = b"x" + CONTENT
    server.files["/model"] = longer
    fetched = fetch(server, tmp_path, QUICK, hashlib.sha256(longer).hexdigest())
    assert fetched.path.read_bytes() == longer


def test_without_anything_to_recognise_it_by_a_part_is_not_continued(server: FileServer, tmp_path: Path) -> None:
    server.etag = False
    server.break_after = [40_000]
    with pytest.raises(DownloadError):
        fetch(server, tmp_path, ONCE)
    assert fetch(server, tmp_path).path.read_bytes() == CONTENT
    assert ranges(server) == [None, None]


def test_a_server_that_ignores_ranges_sends_it_whole(server: FileServer, tmp_path: Path) -> None:
    server.knows_ranges = False
    server.break_after = [40_000]
    assert fetch(server, tmp_path).path.read_bytes() == CONTENT
    assert [status for path, _, status in server.requests if path == "/model"] == [200, 200]


def test_another_digest_is_refused_and_removed(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match=f"has digest sha256:{DIGEST}, expected sha256:{'0' * 64}"):
        fetch(server, tmp_path, sha256="0" * 64)
    assert leftovers(tmp_path) == []


def test_a_digest_beside_the_file_is_compared_with(server: FileServer, tmp_path: Path) -> None:
    server.files["/model.sha256"] = f"{DIGEST}  model\n".encode()
    assert fetch(server, tmp_path).checked_by == f"{server.url}/model.sha256"
    server.files["/model.sha256"] = f"{'0' * 64}  model\n".encode()
    with pytest.raises(DownloadError, match="expected sha256:0000"):
        fetch(server, tmp_path)


def test_what_is_there_with_the_right_digest_is_not_fetched_again(server: FileServer, tmp_path: Path) -> None:
    fetch(server, tmp_path, sha256=DIGEST)
    fetch(server, tmp_path, sha256=DIGEST)
    assert len(ranges(server)) == 1


@pytest.mark.parametrize("knows_length", [True, False])
def test_too_large_a_file_is_refused(server: FileServer, tmp_path: Path, knows_length: bool) -> None:
    server.knows_length = knows_length
    with pytest.raises(DownloadError, match="limit"):
        fetch(server, tmp_path, DownloadRules(max_bytes=50_000))
    assert leftovers(tmp_path) == []


def test_a_busy_server_is_asked_again_and_an_absent_file_is_not(server: FileServer, tmp_path: Path) -> None:
    server.statuses = [503, 503]
    assert fetch(server, tmp_path).path.read_bytes() == CONTENT
    server.requests.clear()
    with pytest.raises(DownloadError, match=r"/nothing: the server says 404 Not Found"):
        download(f"{server.url}/nothing", rules=QUICK, folder=tmp_path)
    assert len([path for path, _, _ in server.requests if path == "/nothing"]) == 1


def test_an_absent_server_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    with serving() as gone:
        url = f"{gone.url}/model"
    with pytest.raises(DownloadError, match=f"{url} could not be fetched in 3 attempts: Connection refused"):
        download(url, sha256=DIGEST, rules=QUICK, folder=tmp_path)


def test_redirects_stay_on_the_web(server: FileServer, tmp_path: Path) -> None:
    server.redirects = {"/moved": "/model", "/out": "ftp://127.0.0.1/passwd"}
    assert download(f"{server.url}/moved", rules=QUICK, folder=tmp_path).path.read_bytes() == CONTENT
    with pytest.raises(DownloadError, match=r"leads on to ftp://127.0.0.1/passwd"):
        download(f"{server.url}/out", rules=QUICK, folder=tmp_path)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "http://", "model"])
def test_only_the_web_is_fetched_from(tmp_path: Path, url: str) -> None:
    with pytest.raises(DownloadError, match="write http"):
        download(url, rules=ONCE, folder=tmp_path)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/mod\u00e8l", "http://[::1/x", "http://a..b/x"], ids=["letters", "brackets", "dots"]
)
def test_an_address_that_is_none_is_refused_by_name(tmp_path: Path, url: str) -> None:
    with pytest.raises(DownloadError, match="not a valid address"):
        download(url, rules=QUICK, folder=tmp_path)


@contextmanager
def dribbling(head: bytes, body: bytes) -> Iterator[str]:
    """A server that sends `head` at once and `body` byte by byte, never slow enough for the timeout of a socket."""
    ended = threading.Event()

    def answer(listening: socket.socket) -> None:
        while not ended.is_set():
            with suppress(OSError):
                connected, _ = listening.accept()
                with connected:
                    connected.recv(4096)
                    connected.sendall(head)
                    for byte in body:
                        if ended.wait(0.02):
                            return
                        connected.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0.1)
        thread = threading.Thread(target=answer, args=(listening,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/model"
        finally:
            ended.set()
            thread.join()


OK_HEAD = b"HTTP/1.0 200 OK\r\nContent-Length: 300\r\n\r\n"


@pytest.mark.parametrize(
    ("head", "body", "said"),
    [(OK_HEAD, bytes(300), "the server is too slow"), (b"", OK_HEAD + bytes(300), "does not answer in time")],
    ids=["body", "head"],
)
@pytest.mark.parametrize("small", [False, True], ids=["file", "text"])
def test_a_server_that_sends_byte_by_byte_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, body: bytes, said: str, small: bool
) -> None:
    monkeypatch.setenv("no_proxy", "*")
    rules = DownloadRules(first_wait_s=0.0, timeout_s=0.3, attempts=1)
    with dribbling(head, body) as url:
        ask = partial(fetch_text, url, 0.3) if small else partial(download, url, rules=rules, folder=tmp_path)
        with pytest.raises(DownloadError, match=said):
            ask()
