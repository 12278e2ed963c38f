"""Play before spectators: every moment is shown, with who sits where and how it stands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import pytest

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.evaluation.tournament import EvaluationMatch
from ludus.games.builtin.beacon import Beacon
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import GameSource, Turn
from ludus.games.lift import Lifted
from ludus.games.pictures import Moment
from ludus.games.seat_rows import GameError
from ludus.workers.player_cache import FixedPlayers, SeatedPlayer


class Enough(Exception):  # noqa: N818
    """Ends an exhibition early."""


def shown(game: GameSource, line_ups: list[tuple[str, ...]], episodes: int, seat: int | None = None) -> list[Moment]:
    moments: list[Moment] = []
    bots = FixedPlayers({name: SeatedPlayer(bot=bot) for name, bot in game.bots().items()})
    EvaluationMatch(game, bots, line_ups, moments.append, episodes=episodes, seat=seat).run()
    return moments


def test_every_moment_of_exactly_the_episodes_asked_for_is_shown() -> None:
    moments = shown(TicTacToe(), [("perfect", "random"), ("rules", "perfect")], 3)
    ends = [moment for moment in moments if moment.ended]
    assert [end.episode for end in ends] == [1, 2, 3, 4, 5, 6]
    assert {moment.episodes for moment in moments} == {6}
    for episode in range(1, 7):
        steps = [moment.step for moment in moments if moment.episode == episode]
        assert steps == list(range(len(steps)))
        assert 6 <= len(steps) <= 10, "the empty board and five to nine marks"
    assert moments[-1].ended


def test_players_change_seats_and_line_ups_come_in_order() -> None:
    ends = [moment for moment in shown(TicTacToe(), [("perfect", "random"), ("rules", "perfect")], 2) if moment.ended]
    assert [end.players for end in ends] == [
        ("perfect", "random"),
        ("random", "perfect"),
        ("rules", "perfect"),
        ("perfect", "rules"),
    ]
    for end in ends:
        best = end.players.index("perfect")
        assert end.winner in (None, best), "a perfect player does not lose"
        assert end.outcome == ("draw" if end.winner is None else "perfect wins")
        assert end.score is not None
        assert sum(end.score) == 0


def test_the_score_of_a_game_with_one_seat_grows_until_the_end() -> None:
    moments = shown(Beacon(decisions=40), [("oracle",)], 1)
    scores = [moment.score[0] for moment in moments if moment.score is not None]
    assert len(moments) == 41
    assert scores == sorted(scores)
    assert scores[0] == 0
    assert scores[-1] >= 2
    assert moments[-1].outcome == "ended"
    assert moments[-1].winner is None


def test_a_timed_game_shows_its_clock_and_the_view_of_a_seat() -> None:
    pictures: list[tuple[np.ndarray, int]] = []
    game = Skirmish(mode="3v3")
    bots = FixedPlayers({name: SeatedPlayer(bot=bot) for name, bot in game.bots().items()})

    def keep(moment: Moment) -> None:
        assert moment.seat == 0
        assert moment.clock is not None
        if moment.step in (0, 20):
            pictures.append((moment.draw(), moment.clock))
        if len(pictures) == 2:
            raise Enough

    with pytest.raises(Enough):
        EvaluationMatch(game, bots, [("random", "random")], keep, episodes=1, seat=0).run()
    (first, start), (later, clock) = pictures
    assert start == 0 < clock
    assert first.shape == later.shape
    assert (first != later).any()


class Flip:
    """One decision; its picture is whatever `picture` says."""

    picture: ClassVar[Any] = np.zeros((4, 6, 3), np.uint8)
    spec = GameSpec.symmetric(
        name="flip",
        num_seats=1,
        observation=ObservationSpec(parts={"now": Vector(size=1)}),
        action=ActionSpec(heads={"move": Choice(num=2, masked=False)}),
        max_length=1,
        zero_sum=False,
    )

    def reset(self, seed: int) -> Turn:
        return Turn(observations={0: np.zeros(1, np.float32)})

    def step(self, actions: Mapping[int, Any]) -> Turn:
        return Turn(observations={}, reward=[0.5], over=True)

    def render(self, seat: int | None) -> Any:
        return self.picture


def test_a_plain_game_that_draws_itself_is_shown() -> None:
    first, last = shown(Lifted(Flip), [("random",)], 1)
    assert first.draw().shape == (4, 6, 3)
    assert last.score == (0.5,)


def test_a_picture_of_the_wrong_shape_names_the_game_and_the_right_one() -> None:
    class Wrong(Flip):
        picture = np.zeros((4, 6))

    moment = shown(Lifted(Wrong), [("random",)], 1)[0]
    with pytest.raises(GameError, match=r"flip: render gives float64 \[4, 6\]; a picture is uint8"):
        moment.draw()
