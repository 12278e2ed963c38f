"""Recorded games as steps for a page: every built-in view, pictures for others, games that do not play."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from ludus.data.replay import Replay, SeatPlayer, decode_replay
from ludus.evaluation.play import replays
from ludus.evaluation.play.replays import drawing_of, replay_document
from ludus.evaluation.play.session import GameSeats, PlaySession, SeatedOpponent, write_replay
from ludus.evaluation.play.views import find_view
from ludus.games.bots import RandomBot
from ludus.games.builtin.beacon import Beacon
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.hills import Hills
from ludus.games.builtin.kuhn import Kuhn
from ludus.games.builtin.leduc import Leduc
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.sumo import Sumo
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameSource, allocate_actions
from ludus.games.recording import RecordedTables, Recording, game_version, map_name
from ludus.replays.playback import PlaybackError
from ludus.replays.replay_games import game_address
from ludus.workers.player_cache import SeatedPlayer


def by_person(source: GameSource, folder: Path) -> tuple[Replay, dict[str, Any]]:
    """A game that a person has played, as it is kept, and what the person was shown at its end."""
    agent = SeatedOpponent(SeatedPlayer(bot=source.bots()["random"]), seed=3)
    with closing(PlaySession(source, find_view(source), agent, 0, seed=5)) as session:
        while session.ended is None:
            if session.show()["real_time"]:
                session.tick([{"train": "worker"}])
            else:
                session.move(max(session.options()))
        line = GameSeats(person="ann", opponent="random", model="", seat=0)
        path = write_replay(folder, source, game_address(source), line, session.ended, 12)
        return decode_replay(path.read_bytes()), session.show()["view"]


@pytest.mark.parametrize(
    "source", [ConnectFour(), TicTacToe(), Kuhn(), Kuhn(seats=3), Leduc(), Skirmish(), Hills()], ids=str
)
def test_a_kept_game_ends_as_it_did(source: GameSource, tmp_path: Path) -> None:
    replay, last = by_person(source, tmp_path)
    document = replay_document(replay, source)
    json.dumps(document, allow_nan=False)
    assert document["game"] == source.spec.name
    assert len(document["steps"]) == replay.num_steps + 1
    assert document["steps"][-1]["view"] == last
    assert [player["name"] for player in document["players"]][:2] == ["ann", "random"]
    done = [move for step in document["steps"] for move in step["done"]]
    assert len(done) == (0 if isinstance(source, Skirmish) else len(replay.decisions()[0]))


def test_what_was_hidden_is_shown(tmp_path: Path) -> None:
    replay, _ = by_person(Kuhn(), tmp_path)
    hands = replay_document(replay, Kuhn())["steps"][0]["view"]["hands"]
    assert all(hand["card"] for hand in hands)


def test_a_long_game_is_thinned_out_but_keeps_its_moves_and_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay, last = by_person(TicTacToe(), tmp_path)
    whole = replay_document(replay, TicTacToe())
    monkeypatch.setattr(replays, "MOST_STEPS", 4)
    document = replay_document(replay, TicTacToe())
    assert len(document["steps"]) <= 5
    assert document["every"] > 1
    assert document["steps"][-1]["view"] == last
    assert [move for step in document["steps"] for move in step["done"]] == [
        move for step in whole["steps"] for move in step["done"]
    ]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"score": (0.5, -0.5)}, "it ends with score"),
        ({"num_steps": 9}, "it ends after|seats .* must act, but"),
        ({"teams": (1, 0)}, "seats"),
    ],
)
def test_a_game_that_does_not_play_as_it_was_recorded(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    replay, _ = by_person(TicTacToe(), tmp_path)
    with pytest.raises(PlaybackError, match=said):
        replay_document(msgspec.structs.replace(replay, **changes), TicTacToe())


def test_real_numbers_are_shown_as_they_are() -> None:
    kept: list[Recording] = []
    tables = RecordedTables(Sumo(decisions=3).tables(1), kept.append)
    tables.reset(np.array([0]), np.array([1], np.uint64))
    actions = allocate_actions(tables.spec, 1)
    actions[0]["thrust"][0] = [(0.12345, -1.0), (0.5, 0.0)]
    while not kept:
        tables.step(actions)
    replay = kept[0].replay(
        game="sumo", options={"decisions": 3}, version="1", map_name="sumo",
        seats=(SeatPlayer("ann"), SeatPlayer("bob")), teams=(0, 1),
    )  # fmt: skip
    document = replay_document(replay, Sumo(decisions=3), drawing_of)
    json.dumps(document, allow_nan=False)
    done = [move["name"] for step in document["steps"] for move in step["done"]]
    assert done == ["0.123 -1", "0.5 0"] * 3


def test_a_game_without_a_view_of_its_own_is_drawn() -> None:
    source = Beacon(decisions=4)
    kept: list[Recording] = []
    tables = RecordedTables(source.tables(1), kept.append)
    tables.reset(np.array([0]), np.array([1], np.uint64))
    rng = np.random.default_rng(0)
    actions = allocate_actions(source.spec, 1)
    while not kept:
        chosen = RandomBot().act(tables, np.array([0]), np.array([0]), rng)
        for head, array in actions[0].items():
            array[0, 0] = chosen[head][0]
        tables.step(actions)
    [game] = kept
    replay = Replay(
        game="beacon", options={"decisions": 4}, version=game_version(source), map=map_name(source),
        seed=game.seed, seats=(SeatPlayer("ann"),), teams=(0,), score=game.score, truncated=game.truncated,
        num_steps=game.num_steps, seen=game.seen, step=game.step, seat=game.seat, action=game.action,
    )  # fmt: skip
    document = replay_document(replay, source, drawing_of)
    pictures = [step["view"]["picture"] for step in document["steps"]]
    assert all(picture.startswith("data:image/png;base64,") for picture in pictures)
    assert len({*pictures}) > 1
    assert drawing_of(Kuhn()) is None
