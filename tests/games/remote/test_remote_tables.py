"""Tables on a server are the tables of the game: same episodes, bots, pictures."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from game_servers import eventually, serving

from ludus.games.bots import RandomBot, act_among
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import CanLoseTables, GameBatch, HasPicture, HostsBots, allocate_actions
from ludus.games.remote.client import GameClient
from ludus.games.remote.source import Remote, from_address
from ludus.games.seat_rows import GameError

pytestmark = pytest.mark.usefixtures("way")
ROOT = Path(__file__).parents[3]
NIM_JS = ROOT / "examples" / "game_server" / "nim.js"
AIMING = f"{ROOT / 'tests' / 'games' / 'aiming_game.py'}:Aiming"
PROTO = ROOT / "src" / "ludus" / "games" / "remote" / "game_server.proto"


def play_beside(one: GameBatch, other: GameBatch, steps: int, seed: int = 0) -> int:
    """The same seeds and actions at both; returns how many episodes were the same to the last bit."""
    rng = np.random.default_rng(seed)
    spec, num_tables = one.spec, one.num_tables
    fresh, finished = np.arange(num_tables), 0
    for _ in range(steps):
        if len(fresh):
            seeds = rng.integers(0, 2**64, len(fresh), np.uint64)
            one.reset(fresh, seeds)
            other.reset(fresh, seeds)
        actions = allocate_actions(spec, num_tables)
        act_among(RandomBot(), one, np.ones((num_tables, 1), np.bool_), rng, actions)
        one.step(actions)
        other.step(actions)
        shown, expected = one.view.named(), other.view.named()
        for name, array in expected.items():
            assert np.array_equal(shown[name], array, equal_nan=array.dtype.kind == "f"), name
        fresh = np.flatnonzero(one.view.over | one.view.truncated)
        finished += len(fresh)
    return finished


@pytest.mark.parametrize(("game", "steps"), [("kuhn", 40), ("connect_four", 60), ("skirmish", 40), ("sumo", 30)])
def test_episodes_are_those_of_the_game_itself(game: str, steps: int) -> None:
    with serving(game) as server:
        remote, here = from_address(f"remote://{server}/{game}").tables(7), resolve(game).tables(7)
        finished = play_beside(here, remote, steps)
        remote.close()
    assert finished > 0 or game == "skirmish"


@pytest.mark.parametrize("game", ["connect_four", "sumo", AIMING])
def test_the_conformance_check_passes_from_afar(game: str) -> None:
    with serving(game) as server:
        report = check_game(from_address(f"remote://{server}"), episodes=4, bot_seconds=0.2)
    assert report.ok, str(report)


def test_what_a_remote_batch_can_do() -> None:
    with serving("connect_four") as server:
        batch = from_address(f"remote://{server}/connect_four").tables(2)
        assert isinstance(batch, CanLoseTables)
        assert isinstance(batch, HostsBots)
        assert isinstance(batch, HasPicture)
        here = resolve("connect_four").tables(2)
        for tables in (batch, here):
            tables.reset(np.arange(2), np.array([5, 6], np.uint64))
        assert np.array_equal(batch.render(1), here.render(1))  # type: ignore[attr-defined]
        batch.close()
    with serving("kuhn") as server:
        batch = from_address(f"remote://{server}/kuhn").tables(1)
        assert not isinstance(batch, HasPicture)
        batch.close()


@pytest.mark.parametrize("game", ["connect_four", "sumo"])
def test_bots_act_at_the_server(game: str) -> None:
    with serving(game) as server:
        source = from_address(f"remote://{server}/{game}")
        own = resolve(game)
        assert set(source.bots()) == set(own.bots())
        remote, here = source.tables(3), own.tables(3)
        rows, seats = np.array([0, 2]), np.array([0, 0])
        for tables in (remote, here):
            tables.reset(np.arange(3), np.arange(3, dtype=np.uint64))
        for name in own.bots():
            if name != "random":
                seed = int(np.random.default_rng(7).integers(2**63))
                chosen = source.bots()[name].act(remote, rows, seats, np.random.default_rng(7))
                expected = own.bots()[name].act(here, rows, seats, np.random.default_rng(seed))
                assert {head: array.tolist() for head, array in chosen.items()} == {
                    head: array.tolist() for head, array in expected.items()
                }
        remote.close()


def test_an_address_says_where_and_what() -> None:
    found = from_address("remote://games.example/skirmish?mode=3v3&depth=4&fast=true")
    assert found == Remote(
        server="games.example:23432", game="skirmish", options={"mode": "3v3", "depth": 4, "fast": True}
    )
    assert from_address("remote://[::1]:99/gymnasium:CartPole-v1") == Remote(
        server="[::1]:99", game="gymnasium:CartPole-v1"
    )
    for wrong in ("remote://", "remote:///kuhn", "remote://a:b/kuhn", "remote://h:99999/kuhn", "remote://u@h/k"):
        with pytest.raises(ValueError, match="remote://"):
            from_address(wrong)


def test_options_of_a_client_are_its_own() -> None:
    with serving("skirmish") as server:
        assert from_address(f"remote://{server}/skirmish?mode=3v3").spec == resolve("skirmish", mode="3v3").spec
        assert from_address(f"remote://{server}/skirmish").spec == resolve("skirmish").spec
        with pytest.raises(GameError, match="1v1"):
            _ = from_address(f"remote://{server}/skirmish?mode=2v2").spec


def test_another_game_is_refused_by_name() -> None:
    with serving("kuhn") as server, pytest.raises(GameError, match="plays 'kuhn', not 'leduc'"):
        _ = from_address(f"remote://{server}/leduc").spec


def test_no_server_is_said_at_once() -> None:
    with pytest.raises(GameError, match=r"no game server answers at 127\.0\.0\.1:9: Connection refused; .*ludus serve"):
        _ = from_address("remote://127.0.0.1:9/kuhn").spec


def test_an_experiment_is_pointed_at_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from ludus.lookup import find_experiment

    with serving("kuhn") as server:
        monkeypatch.setenv("LUDUS_GAME_SERVER", server)
        game = find_experiment("kuhn", ()).game
        assert isinstance(game, Remote)
        assert game.server is None  # another server may go on with the run
        assert game.tree() is not None
        assert game.tables(2).num_tables == 2
        with pytest.raises(ValueError, match="name is leduc here, kuhn there"):
            find_experiment("leduc", ())
        with pytest.raises(ValueError, match=r"it plays 'kuhn'; here it is 'connect_four'"):
            find_experiment("connect_four", ())
        with pytest.raises(ValueError, match="seats"):
            find_experiment("kuhn", ["game.local.seats=3"])
    monkeypatch.delenv("LUDUS_GAME_SERVER")
    with pytest.raises(GameError, match="LUDUS_GAME_SERVER=HOST:PORT"):
        game.tables(1)


def test_a_recipe_takes_a_game_by_its_remote_address() -> None:
    from ludus.lookup import find_experiment

    with serving("rock_paper_scissors") as server:
        experiment = find_experiment("rps", [f"game=remote://{server}/rock_paper_scissors"])
        assert experiment.game == Remote(server=server, game="rock_paper_scissors")


def test_clients_share_a_server_but_no_tables() -> None:
    with serving("kuhn") as server, GameClient(server) as client:
        source = from_address(f"remote://{server}/kuhn")
        one, other = source.tables(3), source.tables(5)
        assert (client.describe().clients, client.describe().tables) == (2, 8)
        assert play_beside(resolve("kuhn").tables(3), one, 10, seed=1) > 0
        assert play_beside(resolve("kuhn").tables(5), other, 10, seed=2) > 0
        one.close()
        assert eventually(lambda: client.describe().tables == 5)
        assert play_beside(resolve("kuhn").tables(5), other, 10, seed=3) > 0
        other.close()


@contextmanager
def other_server(*command: str | Path) -> Iterator[str]:
    """HOST:PORT of a program that prints where it listens."""
    process = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield f"127.0.0.1:{re.findall('[0-9]+', process.stdout.readline().removesuffix('/nim'))[-1]}"
    finally:
        process.kill()
        process.communicate()


def check_nim(server: str) -> None:
    source = from_address(f"remote://{server}/nim")
    assert set(source.bots()) == {"random", "perfect"}
    report = check_game(source, episodes=8, bot_seconds=0.2)
    assert report.ok, str(report)


def test_a_server_written_from_the_document_alone_is_understood() -> None:
    with other_server(sys.executable, "-I", Path(__file__).with_name("bare_server.py"), "0") as server:
        check_nim(server)


def has_node_packages() -> bool:
    """Where the script looks for them: beside it, or in NODE_PATH."""
    if shutil.which("node") is None:
        return False
    ask = "require('@grpc/grpc-js'); require('@grpc/proto-loader')"
    return subprocess.run(["node", "-e", ask], cwd=NIM_JS.parent, capture_output=True).returncode == 0


@pytest.mark.skipif(not has_node_packages(), reason="node, @grpc/grpc-js and @grpc/proto-loader run it")
def test_a_server_in_another_language_is_understood() -> None:
    with other_server("node", NIM_JS, "0", PROTO) as server:
        check_nim(server)
