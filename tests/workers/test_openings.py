"""Training episodes that start after random moves: nobody trains on these, and evaluation knows none."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from whole_runs import check_ledger, open_training, tiny

from ludus.data.records import MatchFinished, MatchIssued, Result
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.goofspiel import Goofspiel
from ludus.games.builtin.siege import Siege
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameBatch, GameSource
from ludus.runtime.rounds import FINISHED
from ludus.workers.config import Openings
from ludus.workers.seating import Seating


def played(path: Path, game: GameSource, openings: Openings, budget: int = 640) -> dict[str, list[Result]]:
    """Results of a run by purpose."""
    with closing(open_training(path, tiny(game, openings=openings, budget=budget))) as training:
        assert training.run() == FINISHED
        if isinstance(game, ConnectFour):  # elsewhere a player may earn something before its first decision
            assert training.numbers()["dropped_reward"] == 0.0
    events = check_ledger(path)
    issued = {event.match.id: event.match for event in events if isinstance(event, MatchIssued)}
    found: dict[str, list[Result]] = {"training": [], "evaluation": []}
    for event in events:
        if isinstance(event, MatchFinished):
            match = issued[event.result.match_id]
            assert event.result.episodes == match.episodes
            found[match.purpose].append(event.result)
    return found


def random_moves(results: list[Result]) -> float:
    """Of an episode, on average, in a game of one move a step."""
    episodes = sum(one.episodes for one in results)
    return sum(one.steps - sum(one.decisions) for one in results) / episodes


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.0), (0.5, 1.5), (1.0, 3.0)])
def test_a_share_of_training_episodes_has_random_moves_and_evaluation_none(
    tmp_path: Path, share: float, expected: float
) -> None:
    results = played(tmp_path / "run", ConnectFour(), Openings(moves=6, share=share))
    assert len(results["evaluation"]) >= 4
    assert random_moves(results["evaluation"]) == 0.0
    assert random_moves(results["training"]) == pytest.approx(expected, abs=0.4)


def test_the_players_begin_in_many_positions_and_learn_from_there(tmp_path: Path) -> None:
    experiment = tiny(ConnectFour(), openings=Openings(moves=4))
    first: set[bytes] = set()
    with closing(open_training(tmp_path / "run", experiment)) as training:
        actor = training.workers.actor
        begun = np.zeros(actor._game.num_tables, bool)

        def watch(game: GameBatch, seating: Seating) -> None:
            begun[seating.steps == 0] = False
            now = (actor._opening == 0) & ~begun & game.view.to_act.any(1)
            begun[now] = True
            trains = (seating.owner_of_seat >= 0).any(1)
            [tree] = game.view.observation
            for table in np.flatnonzero(now & trains):
                seat = int(game.view.to_act[table].argmax())
                first.add(b"".join(array[table, seat].tobytes() for array in tree.values()))

        actor._watch = watch
        training.run()
    assert len(first) > 20


def test_a_game_that_ends_in_its_opening_starts_at_the_beginning(tmp_path: Path) -> None:
    """Nine random moves end tic-tac-toe: about every second opening is too long."""
    results = played(tmp_path / "run", TicTacToe(), Openings(moves=9))
    assert 1.0 < random_moves(results["training"]) < 4.5
    assert all(sum(one.decisions) >= one.episodes for one in results["training"])


@pytest.mark.parametrize("game", [Goofspiel(num_cards=3), Siege()], ids=["simultaneous", "asymmetric"])
def test_openings_suit_every_game(tmp_path: Path, game: GameSource) -> None:
    results = played(tmp_path / "run", game, Openings(moves=1), budget=320)
    assert results["training"]


def test_settings_out_of_range_are_named() -> None:
    for wrong in ({"moves": -1}, {"share": 1.5}):
        with pytest.raises(ValueError, match=rf"Openings\.{next(iter(wrong))}"):
            Openings(**wrong)  # type: ignore[arg-type]
