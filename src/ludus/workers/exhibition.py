"""Plays line-ups at one table before spectators: what `ludus eval --render` shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ludus.data.moments import Moment
from ludus.games.game import GameBatch, GameSource, Seat, lost_tables
from ludus.games.pictures import pictured
from ludus.games.seat_rows import GameError
from ludus.workers.seating import Seating
from ludus.workers.shelf import Players
from ludus.workers.tournament import Tournament


class Exhibition:
    """Every line-up plays exactly `episodes` episodes, seats in rotation. `show` is given every moment of
    them; what it does meanwhile (such as wait) holds the game up."""

    def __init__(
        self,
        game: GameSource,
        players: Players,
        line_ups: Sequence[tuple[str, ...]],
        show: Callable[[Moment], None],
        *,
        episodes: int,
        seat: Seat | None = None,
        seed: int = 0,
    ) -> None:
        """`seat`: whose view is drawn; None: everything is."""
        self._seat = seat
        self._show = show
        self._episodes = episodes
        self._num_line_ups = len(line_ups)
        self._score = np.zeros(game.spec.num_teams)
        self._tournament = Tournament(
            game, players, line_ups, episodes=episodes, seed=seed, watch=self._watch
        )

    def run(self) -> None:
        self._tournament.run()

    def _watch(self, tables: GameBatch, seating: Seating) -> None:
        played = len(self._tournament.results)
        if played == self._num_line_ups or lost_tables(tables):
            return  # an episode that nobody asked for, or one that will be played again
        view, spec, step = tables.view, tables.spec, int(seating.steps[0])
        if step == 0:
            self._score[:] = 0.0
        else:
            self._score += [view.reward[0, seats].mean() for seats in map(list, spec.seats_of_team)]
        ended = bool(view.over[0] or view.truncated[0])
        shown = tuple((view.score[0] if ended else self._score).tolist())
        moment = Moment(
            game=spec.name,
            players=tuple(
                seating.player_ids[seating.player_of_seat[0, seats[0]]] for seats in spec.seats_of_team
            ),
            score=shown if ended or spec.reward_is_score else None,
            episode=played * self._episodes + int(seating.episode[0]) + 1,
            episodes=self._num_line_ups * self._episodes,
            step=step,
            clock=int(view.clock[0]) if spec.timed else None,
            seat=self._seat,
            ended=ended,
            draw=partial(_draw, tables, self._seat),
        )
        self._show(moment)


def _draw(tables: GameBatch, seat: Seat | None) -> NDArray[np.uint8]:
    drawn = pictured(tables)
    assert drawn is not None, f"{tables.spec.name} has no pictures"
    picture = drawn.render(0, seat)
    if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3:
        raise GameError(
            f"{tables.spec.name}: render gives {picture.dtype} {list(picture.shape)}; a picture is uint8 "
            "[height, width, 3]"
        )
    return picture
