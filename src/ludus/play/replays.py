"""A recorded game as steps that a page walks through."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np

from ludus.data.moments import written_score
from ludus.data.replay import Replay
from ludus.games.game import GameBatch, GameSource, allocate_actions
from ludus.games.playback import PlaybackError, decisions_of_seat, require_same_game
from ludus.play.plain_view import PlainView
from ludus.play.views import FindDrawing, View, find_view

MOST_STEPS = 2_000
"""Of a longer game so many are shown, evenly spread."""
MOST_PICTURES = 200
"""The same, where each step is a picture."""


def replay_document(replay: Replay, source: GameSource, drawing: FindDrawing | None = None) -> dict[str, Any]:
    """The game step by step, with everything that there is to see, as plain values. `source` is the game
    itself; `drawing` finds what makes pictures of a game that has no view of its own.

    Raises `PlaybackError` if the game no longer plays as it was recorded.
    """
    require_same_game(source.spec, replay)
    view = find_view(source, drawing)
    most = MOST_PICTURES if isinstance(view, PlainView) and view.is_picture else MOST_STEPS
    every = -(-(replay.num_steps + 1) // most)
    with closing(source.tables(1)) as tables:
        steps = _steps(replay, tables, view, every)
        score = tuple(tables.view.score[0].tolist())
    if score != replay.score:
        raise PlaybackError(f"it ends with score {score}, not {replay.score}")
    return {
        "game": source.spec.name,
        "map": replay.map,
        "players": [{"name": seat.name, "model": seat.model} for seat in replay.seats],
        "teams": list(replay.teams),
        "score": [written_score(one) for one in replay.score],
        "outcome": _outcome(replay),
        "every": every,
        "steps": steps,
    }


def _steps(replay: Replay, tables: GameBatch, view: View, every: int) -> list[dict[str, Any]]:
    spec = tables.spec
    actions = allocate_actions(spec, 1)
    step_of, seat_of = replay.decisions()
    chosen = {seat: decisions_of_seat(spec, replay, seat) for seat in range(spec.num_seats)}
    place = [0] * spec.num_seats
    tables.reset(np.array([0]), np.array([replay.seed], np.uint64))
    latest: int | None = None
    steps: list[dict[str, Any]] = [{"view": view.show(tables, None, None), "done": []}]
    done: list[dict[str, Any]] = []
    for step in range(replay.num_steps):
        if tables.view.over[0] or tables.view.truncated[0]:
            raise PlaybackError(f"it ends after {step} steps, not {replay.num_steps}")
        acting = seat_of[step_of == step].tolist()
        if sorted(acting) != np.flatnonzero(tables.view.to_act[0]).tolist():
            raise PlaybackError(f"other seats must act at step {step} than did")
        for seat in acting:
            kind, column = spec.seats[seat], spec.column_of_seat[seat]
            for head, rows in chosen[seat].items():
                actions[kind][head][0, column] = rows[place[seat]]
            place[seat] += 1
            option = int(next(iter(actions[kind].values()))[0, column].flat[0])
            if not view.real_time:  # there most decisions are to let things go on
                latest = option
                done.append({"seat": seat, "name": view.options(tables, seat)[option]})
        try:
            tables.step(actions)
        except ValueError as error:
            raise PlaybackError(f"step {step} cannot be played: {error}") from error
        if (step + 1) % every == 0 or step + 1 == replay.num_steps:
            steps.append({"view": view.show(tables, None, latest), "done": done})
            done = []
    return steps


def _outcome(replay: Replay) -> str:
    if len(replay.score) < 2:
        return "ended"
    best = max(replay.score)
    if replay.score.count(best) > 1:
        return "draw"
    return f"{replay.matchup[replay.score.index(best)]} wins"
