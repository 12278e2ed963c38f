"""The recorder: exactly the wanted episodes, each side equally often on each seat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from ludus.data.replay import Replay
from ludus.evaluation.tournament import Recorder, Wanted
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.rock_paper_scissors import RockPaperScissors
from ludus.games.game import GameSource
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer


def recorded(game: GameSource, wanted: Sequence[Wanted], tables: int) -> list[tuple[int, Replay]]:
    kept: list[tuple[int, Replay]] = []
    Recorder(
        game,
        FixedPlayers({name: SeatedPlayer(bot=bot) for name, bot in game.bots().items()}),
        wanted,
        address=game.spec.name,
        options={},
        keep=lambda place, replay: kept.append((place, replay)),
        num_tables=tables,
        seed=4,
    ).record()
    return kept


@pytest.mark.parametrize("tables", [1, 3, 8, 100])
def test_every_line_up_gets_its_episodes_with_seats_swapped(tables: int) -> None:
    wanted = [
        Wanted(players=("rock", "paper"), episodes=7),
        Wanted(players=("paper", "scissors"), episodes=20),
        Wanted(players=("rock", "scissors"), episodes=1),
    ]
    kept = recorded(RockPaperScissors(), wanted, tables)
    assert Counter(place for place, _ in kept) == {0: 7, 1: 20, 2: 1}
    for place, one in enumerate(wanted):
        first = [replay.matchup.index(one.players[0]) for number, replay in kept if number == place]
        assert abs(first.count(0) - first.count(1)) <= 1
    assert len({replay.seed for _, replay in kept}) == len(kept)


def test_a_table_that_is_quick_plays_several_places_of_a_match() -> None:
    wanted = [Wanted(players=("random", "random"), episodes=8) for _ in range(20)]
    kept = recorded(ConnectFour(), wanted, tables=4)
    assert Counter(place for place, _ in kept) == dict.fromkeys(range(20), 8)
    assert len({replay.seed for _, replay in kept}) == len(kept)
