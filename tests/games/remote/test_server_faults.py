"""What goes wrong at a server, on the way or at a client costs tables, never the training, and says why."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from game_servers import eventually, serving
from hypothesis import HealthCheck, given, settings, strategies as st
from test_remote_tables import play_beside
from troubled_games import Trouble, TroubledKuhn

from ludus.data.specs import spec_to_json
from ludus.games.catalog import resolve
from ludus.games.game import GameBatch, allocate_actions
from ludus.games.isolation.isolated import Isolated
from ludus.games.remote import tables as remote_tables
from ludus.games.remote.client import GameClient
from ludus.games.remote.messages import (
    PROTOCOL,
    SERVICE,
    Act,
    ChosenActions,
    Draw,
    Hello,
    Join,
    Picture,
    Reset,
    Step,
    View,
    Welcome,
    pack,
    view_parts,
)
from ludus.games.remote.source import Remote
from ludus.games.seat_rows import GameError
from ludus.system.arrays import Buffer

pytestmark = pytest.mark.usefixtures("way")


def kuhn_at(server: str, **options: float) -> Remote:
    return Remote(server=server, game="kuhn", **options)  # type: ignore[arg-type]


def begin(batch: GameBatch) -> None:
    batch.reset(np.arange(batch.num_tables), np.arange(batch.num_tables, dtype=np.uint64))


def idle_step(batch: GameBatch) -> None:
    batch.step(allocate_actions(batch.spec, batch.num_tables))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return int(found.getsockname()[1])


def all_lost(batch: GameBatch, reason: str) -> None:
    lost = batch.lost  # type: ignore[attr-defined]
    assert set(lost) == set(range(batch.num_tables))
    assert all(reason in why for why in lost.values()), lost
    for array in (batch.view.to_act, batch.view.over, batch.view.truncated, batch.view.reward):
        assert not array.any()


def test_a_server_that_is_started_anew_goes_on_at_the_next_reset() -> None:
    port = free_port()
    with serving("kuhn", port=port) as server:
        batch = kuhn_at(server, timeout_s=20.0).tables(4)
        begin(batch)
        idle_step(batch)
        assert not batch.lost  # type: ignore[attr-defined]
    idle_step(batch)
    all_lost(batch, f"127.0.0.1:{port}")
    idle_step(batch)  # nothing happens at tables that are lost
    all_lost(batch, f"127.0.0.1:{port}")
    with serving("kuhn", port=port):
        batch.reset(np.array([1, 3]), np.array([8, 9], np.uint64))
        assert set(batch.lost) == {0, 2}  # type: ignore[attr-defined]
        assert batch.view.to_act[[1, 3]].any(axis=1).all()
        assert not batch.view.to_act[[0, 2]].any()
        while not batch.view.over[[1, 3]].all():  # the others must not disturb these
            idle_step(batch)
        batch.reset(np.array([0, 2]), np.array([8, 9], np.uint64))
        assert not batch.lost  # type: ignore[attr-defined]
        assert play_beside(resolve("kuhn").tables(4), batch, 10) > 0
        batch.close()


def test_a_server_that_stays_away_is_waited_for_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving("kuhn") as server:
        batch = kuhn_at(server, timeout_s=0.3).tables(2)
    began = time.monotonic()
    begin(batch)
    assert time.monotonic() - began < 20.0
    all_lost(batch, "no game server answers")
    monkeypatch.setattr(remote_tables, "MOST_LOSSES", 2)
    begin(batch)
    with pytest.raises(GameError, match="lost 2 times without finishing"):
        begin(batch)


def test_a_killed_server_process_loses_the_tables(tmp_path: object) -> None:
    port = free_port()
    command = [sys.executable, "-m", "ludus.cli.main", "serve", "kuhn", "--workers", "0", "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert f"127.0.0.1:{port}" in process.stdout.readline()
        batch = kuhn_at(f"127.0.0.1:{port}").tables(2)
        begin(batch)
        process.kill()
        process.wait()
        idle_step(batch)
        all_lost(batch, f"127.0.0.1:{port}")
        batch.close()
    finally:
        process.kill()
        process.communicate()


def test_what_the_game_raises_costs_the_tables_and_is_told() -> None:
    trouble, told = Trouble(), []  # type: ignore[var-annotated]
    with serving(TroubledKuhn(trouble), name="kuhn", told=told) as server:
        batch = kuhn_at(server).tables(3)
        begin(batch)
        trouble.before_step = lambda: 1 // 0  # type: ignore[assignment,return-value]
        idle_step(batch)
        all_lost(batch, "ZeroDivisionError")
        assert any("ZeroDivisionError" in line for line in told)
        trouble.before_step = None
        batch.reset(np.array([1]), np.array([4], np.uint64))
        assert set(batch.lost) == {0, 2}  # type: ignore[attr-defined]
        begin(batch)
        assert play_beside(resolve("kuhn").tables(3), batch, 10) > 0
        batch.close()
        assert eventually(lambda: trouble.opened == trouble.closed)


def test_a_game_that_crashes_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_tables, "MOST_LOSSES", 4)
    trouble = Trouble(before_step=lambda: 1 // 0)  # type: ignore[arg-type,return-value]
    with serving(TroubledKuhn(trouble), name="kuhn") as server:
        batch = kuhn_at(server).tables(3)
        for _ in range(4):
            begin(batch)
            idle_step(batch)
        with pytest.raises(GameError, match=r"4 times without finishing an episode.*ZeroDivisionError"):
            begin(batch)
        batch.close()


def test_an_answer_that_does_not_come_loses_the_tables() -> None:
    trouble = Trouble()
    trouble.before_step = trouble.wait
    with serving(TroubledKuhn(trouble), name="kuhn") as server:
        batch = kuhn_at(server, timeout_s=0.5).tables(2)
        begin(batch)
        idle_step(batch)
        all_lost(batch, "gave no answer within 0.5 s")
        trouble.going_on.set()
        begin(batch)
        assert not batch.lost  # type: ignore[attr-defined]
        batch.close()


def test_a_broken_bot_loses_the_tables_and_still_answers() -> None:
    with serving(TroubledKuhn(Trouble()), name="kuhn") as server:
        source = kuhn_at(server)
        batch = source.tables(2)
        begin(batch)
        rows = np.arange(2)
        chosen = source.bots()["broken"].act(batch, rows, np.zeros(2, np.int64), np.random.default_rng(0))
        assert all(array.shape == (2,) for array in chosen.values())
        all_lost(batch, "this bot is broken")
        begin(batch)
        assert not batch.lost  # type: ignore[attr-defined]
        batch.close()


def test_reasons_of_an_isolated_game_reach_the_client(tmp_path: Path) -> None:
    """It crashes in one of the server's two processes: only the tables there are lost, and come back."""
    game = f"{Path(__file__).parents[1] / 'isolation' / 'hostile_games.py'}:Hostile"
    isolated = Isolated(game, {"act": "segfault", "marks": str(tmp_path)}, processes=2, step_seconds=30.0)
    told: list[str] = []
    with serving(isolated, name="kuhn", told=told) as server:
        batch = kuhn_at(server).tables(4)
        begin(batch)
        while not batch.lost:  # type: ignore[attr-defined]
            idle_step(batch)
            if (ended := np.flatnonzero(batch.view.over)).size:
                batch.reset(ended, ended.astype(np.uint64))
        lost = dict(batch.lost)  # type: ignore[attr-defined]
        assert set(lost) in ({0, 1}, {2, 3})
        assert all("SIGSEGV" in reason for reason in lost.values()), lost
        assert any("SIGSEGV" in line for line in told)
        assert not batch.view.to_act[[*lost]].any()
        begin(batch)
        assert not batch.lost  # type: ignore[attr-defined]
        assert play_beside(resolve("kuhn").tables(4), batch, 4) > 0
        batch.close()


class Foreign(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server that answers hello as it should, and anything after that with the same frame."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer

    def service(self, details: object) -> grpc.RpcMethodHandler:
        return grpc.stream_stream_rpc_method_handler(self._play)

    def _play(self, frames: Iterator[bytes], context: object) -> Iterator[bytes]:
        next(frames)
        spec = spec_to_json(resolve("kuhn").spec)
        yield pack(Welcome(protocol=1, server="x", game="kuhn", spec=spec, bots=["odd"], pictures=True))
        for _ in frames:
            yield self._answer


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    server = grpc.server(ThreadPoolExecutor(4), handlers=[Foreign(answer)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def kuhn_view(**changes: object) -> list[Buffer]:
    batch = resolve("kuhn").tables(2)
    begin(batch)
    for name, value in changes.items():
        getattr(batch.view, name)[1] = value
    return view_parts(batch.view)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"\xff" * 40, "nonsense"),
        (pack(ChosenActions()), "actions to reset"),
        (pack(View(), [bytes(7)]), "7 bytes"),
        (pack(View()), "0 bytes"),
        (pack(View(lost={"two": "x"}), kuhn_view()), "lost tables are 0 to 1"),
        (pack(View(lost={"2": "x"}), kuhn_view()), "lost tables are 0 to 1"),
        (pack(View(lost={"-1": "x"}), kuhn_view()), "lost tables are 0 to 1"),
        (pack(View(), kuhn_view(reward=np.nan)), "reward of table 1"),
        (pack(View(), kuhn_view(to_act=False)), "table 1 has not ended, but nobody is to act"),
    ],
)
def test_nonsense_from_a_server_loses_the_tables(answer: bytes, said: str) -> None:
    with answering(answer) as server:
        batch = kuhn_at(server).tables(2)
        begin(batch)
        all_lost(batch, said)
        batch.close()


def test_nonsense_from_a_bot_loses_the_tables() -> None:
    with answering(pack(ChosenActions(), [bytes(3)])) as server:
        source = kuhn_at(server)
        batch = source.tables(2)
        batch.view.legal[0]["move"][:] = True
        source.bots()["odd"].act(batch, np.arange(2), np.zeros(2, np.int64), np.random.default_rng(0))
        all_lost(batch, "nonsense")
        batch.close()


def test_nonsense_instead_of_a_picture_loses_the_tables() -> None:
    with answering(pack(Picture(height=2, width=2), [bytes(11)])) as server:
        batch = kuhn_at(server).tables(2)
        with pytest.raises(GameError, match="2 x 2 in 11 bytes"):
            batch.render(0, None)  # type: ignore[attr-defined]
        all_lost(batch, "nonsense")
        batch.close()


def test_a_refusal_is_short_whatever_was_asked(raw: grpc.Channel) -> None:
    code, details = send(raw, pack(Join(protocol=PROTOCOL, match="m" * 10_000, camp=0)))
    assert code == grpc.StatusCode.NOT_FOUND
    assert len(details) < 2_000


def test_tables_are_closed_when_their_client_vanishes() -> None:
    trouble = Trouble()
    with serving(TroubledKuhn(trouble), name="kuhn") as server, GameClient(server) as client:
        batch = kuhn_at(server).tables(3)
        begin(batch)
        assert client.describe().tables == 3
        del batch
        gc.collect()  # nobody has closed it
        assert eventually(lambda: client.describe().tables == 0)
        assert trouble.opened == trouble.closed == 1


def test_there_is_room_for_so_many_tables() -> None:
    with serving("kuhn", tables_max=5) as server:
        batch = kuhn_at(server).tables(3)
        with pytest.raises(GameError, match="no room for 3 tables: 3 of 5"):
            kuhn_at(server).tables(3)
        batch.close()


def test_a_server_that_is_not_ready_says_why() -> None:
    with (
        serving("kuhn", why_not_ready=lambda: "the game's program is not ready: starting") as server,
        pytest.raises(GameError, match="not ready: starting"),
    ):
        kuhn_at(server).tables(1)


def test_a_message_that_is_too_long_is_refused() -> None:
    with serving("connect_four", message_bytes=4096) as server, GameClient(server) as client:
        remote = Remote(server=server, game="connect_four")
        batch = remote.tables(64)
        with pytest.raises(GameError, match=r"larger than max .*use fewer tables"):
            begin(batch)
        batch.close()
        small = remote.tables(1)
        begin(small)
        assert not small.lost  # type: ignore[attr-defined]
        small.close()
        assert client.describe().message_bytes == 4096


@pytest.fixture(scope="module")
def raw() -> Iterator[grpc.Channel]:
    """A way to a server that anything can be sent by."""
    with serving("kuhn") as server, grpc.insecure_channel(server) as channel:
        yield channel


def send(channel: grpc.Channel, *frames: bytes) -> tuple[grpc.StatusCode, str]:
    """How the stream of play ends."""
    answers = channel.stream_stream(f"/{SERVICE}/Play")(iter(frames), timeout=20.0)
    try:
        for _ in answers:
            pass
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


HELLO = Hello(protocol=PROTOCOL, game="kuhn", options={}, tables=2)


def test_another_version_of_the_protocol_is_refused(raw: grpc.Channel) -> None:
    hello = Hello(protocol=PROTOCOL + 1, game="kuhn", options={}, tables=2)
    code, details = send(raw, pack(hello))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert f"protocol {PROTOCOL}" in details
    code, _ = send(raw, pack(Join(protocol=7, match="m", camp=0)))
    assert code == grpc.StatusCode.FAILED_PRECONDITION


@pytest.mark.parametrize(
    ("frames", "said"),
    [
        ([b"\xff" * 40], "no frame"),
        ([b""], "no message"),
        ([pack(Step())], "begins with hello"),
        ([pack(Hello(protocol=1, game="kuhn", options={}, tables=-1))], "-1 tables"),
        ([pack(HELLO), pack(HELLO)], "comes first"),
        ([pack(HELLO), pack(Reset(rows=3), [bytes(48)])], "reset of 3 tables"),
        ([pack(HELLO), pack(Reset(rows=-1))], "reset of -1"),
        ([pack(HELLO), pack(Reset(rows=2), [bytes(31)])], "bytes"),
        ([pack(HELLO), pack(Reset(rows=1), [np.array([2, 0])])], "tables are 0 to 1"),
        ([pack(HELLO), pack(Step(), [bytes(7)])], "bytes"),
        ([pack(HELLO), pack(Act(bot="nobody", rows=1))], "no bot 'nobody'"),
        ([pack(HELLO), pack(Act(bot="random", rows=10**12))], "1 to 4 rows"),
        ([pack(HELLO), pack(Act(bot="random", rows=1), [np.array([0, 9, 0])])], "seats are 0 to 1"),
        ([pack(HELLO), pack(Draw(table=0))], "cannot be drawn"),
    ],
)
def test_what_cannot_be_asked_is_refused(raw: grpc.Channel, frames: list[bytes], said: str) -> None:
    code, details = send(raw, *frames)
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert said in details


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(junk=st.lists(st.binary(max_size=60), min_size=1, max_size=3))
def test_hostile_bytes_end_their_own_stream_only(raw: grpc.Channel, junk: list[bytes]) -> None:
    code, _ = send(raw, pack(HELLO), *junk)
    assert code in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.OK)
    reset = pack(Reset(rows=2), [np.array([0, 1]), np.array([1, 2], np.uint64)])
    assert send(raw, pack(HELLO), reset) == (grpc.StatusCode.OK, "")
