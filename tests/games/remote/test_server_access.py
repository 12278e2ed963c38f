from __future__ import annotations

import queue
import shlex
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from game_servers import eventually, serving

from ludus.games.remote import messages
from ludus.games.remote.client import GameClient, ServerAccess
from ludus.games.remote.source import Remote
from ludus.games.remote.tables import ServerLost
from ludus.games.seat_rows import GameError

TOKEN = "correct-horse-battery"


@pytest.fixture
def token_file(tmp_path: Path) -> str:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(f"{TOKEN}\n")
    return str(file)


def test_a_token_opens_the_server_and_nothing_else_does(token_file: str, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.touch(0o600)
    wrong.write_text("battery-staple-horse")
    with serving("kuhn", token=TOKEN) as server:
        assert Remote(server=server, token_file=token_file).tables(1).num_tables == 1
        for given, said in ((None, "LUDUS_GAME_TOKEN_FILE"), (str(wrong), "this is not its token")):
            with pytest.raises(GameError, match=said):
                Remote(server=server, token_file=given).tables(1)
            with GameClient(server, token_file=given) as client, pytest.raises(GameError, match="token"):
                client.list()
        with GameClient(server, token_file=token_file) as client:
            assert client.list() == ()


def test_the_token_may_come_from_the_environment(token_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LUDUS_GAME_TOKEN_FILE", token_file)
    with serving("kuhn", token=TOKEN) as server:
        assert Remote(server=server).spec.name == "kuhn"


@pytest.mark.parametrize("token", [None, TOKEN])
@pytest.mark.parametrize("method", ["Describe", "Play"])
def test_calls_without_a_request_keep_nobody_out(token: str | None, method: str, token_file: str) -> None:
    with serving("kuhn", token=token, clients_max=2) as server, ExitStack() as ending:
        channel = ending.enter_context(grpc.insecure_channel(server, [("grpc.use_local_subchannel_pool", 1)]))
        for _ in range(60):  # more than the server has threads
            requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
            channel.stream_stream(f"/{messages.SERVICE}/{method}")(iter(requests.get, None))
            ending.callback(requests.put, None)
        with GameClient(server, token_file=None if token is None else token_file) as client:
            assert eventually(lambda: _answers(client))


def _answers(client: GameClient) -> bool:
    try:
        return client.list() == ()
    except ServerLost:  # the calls above are still arriving
        return False


@pytest.mark.parametrize("server", ["localhost", "localhost:", ":23432", "localhost:99999", "localhost:x"])
def test_a_server_is_host_and_port(server: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        ServerAccess(server=server)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_tls_hides_the_game_and_proves_the_server(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        subprocess.run(
            shlex.split(
                "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 "
                f"-keyout {name}.key -out {name}.pem -subj /CN=localhost "
                "-addext subjectAltName=DNS:localhost,IP:127.0.0.1"
            ),
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )
    tls = ((tmp_path / "mine.key").read_bytes(), (tmp_path / "mine.pem").read_bytes())
    with serving("kuhn", tls=tls) as server:
        assert Remote(server=server, ca_file=str(tmp_path / "mine.pem")).tables(2).num_tables == 2
        for wrong, said in ((None, "TLS, name its certificate in LUDUS_GAME_CA_FILE"), ("other.pem", "answers")):
            given = None if wrong is None else str(tmp_path / wrong)
            with pytest.raises(GameError, match=said):
                Remote(server=server, ca_file=given, timeout_s=5.0).tables(1)
        with pytest.raises(ValueError, match=r"mine\.key: holds no certificate"):
            Remote(server=server, ca_file=str(tmp_path / "mine.key")).tables(1)
