"""A recorded game as steps that a page walks through."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from ludus.config import decode
from ludus.data.replay import SUFFIX, Replay, ReplayError, decode_replay
from ludus.evaluation.play.views import Draw, FindDrawing, GameView, PlainView, find_view, named_choice
from ludus.games.catalog import list_games
from ludus.games.game import GameBatch, GameSource, Seat, allocate_actions
from ludus.games.pictures import pictured, written_score
from ludus.games.recording import innermost
from ludus.replays.playback import PlaybackError, ReplayedTable, require_same_game
from ludus.replays.replay_games import make_recorded_game
from ludus.store.files import read_file

if TYPE_CHECKING:
    from ludus.store.run_folder import RunFolder


MOST_STEPS = 2_000
"""Steps that are shown of a longer game, evenly spread."""
MOST_PICTURES = 200
"""The same for games whose steps are pictures."""


def replay_document(replay: Replay, source: GameSource, drawing: FindDrawing | None = None) -> dict[str, Any]:
    """The game step by step, with everything that there is to see, as plain values. Raises `PlaybackError` if the game
    no longer plays as it was recorded."""
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


def _steps(replay: Replay, tables: GameBatch, view: GameView, every: int) -> list[dict[str, Any]]:
    spec = tables.spec
    playing, actions = ReplayedTable(spec, replay, ()), allocate_actions(spec, 1)
    tables.reset(np.array([0]), np.array([replay.seed], np.uint64))
    latest: int | None = None
    steps: list[dict[str, Any]] = [{"view": view.show(tables, None, None), "done": []}]
    done: list[dict[str, Any]] = []
    for step in range(replay.num_steps):
        if tables.view.over[0] or tables.view.truncated[0]:
            raise PlaybackError(f"it ends after {step} steps, not {replay.num_steps}")
        playing.decide(0, tables, actions)
        acting = [] if view.real_time else np.flatnonzero(tables.view.to_act[0]).tolist()
        for seat in acting:  # in real time most decisions are to let things go on
            heads = actions[spec.seats[seat]]
            chosen = next(iter(heads.values()))[0, spec.column_of_seat[seat], ...]
            latest = int(chosen.flat[0])
            done.append({"seat": seat, "name": named_choice(view.options(tables, seat), chosen)})
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


KEPT = 16
"""Documents that are held in memory: several people may look at the same game."""


def replay_reader(folder: RunFolder, *, trusted: bool = False) -> Callable[[str], dict[str, Any]]:
    """From the name of a file in the run's folder of replays to its document. A ValueError or OSError says
    why there is none. Plays built-in games; with `trusted` also the run's own game, whose code it imports."""
    replays = folder.path / "replays"

    @lru_cache(maxsize=1)
    def own_game() -> GameSource:
        game: GameSource = innermost(decode(msgspec.json.decode(folder.facts.experiment)["game"]))
        return game

    @lru_cache(maxsize=1)
    def built_in() -> set[str]:
        return {entry.address for entry in list_games() if entry.library is None}

    @lru_cache(maxsize=KEPT)
    def read(path: Path, _changed: int) -> dict[str, Any]:
        try:
            replay = decode_replay(read_file(path))
            if not trusted and replay.game not in built_in():
                raise ValueError(f"it is of {replay.game}: --trust plays it with the code that the run names")
            source = make_recorded_game(replay, trusted=own_game() if trusted else None)
            return replay_document(replay, source, drawing_of)
        except (ReplayError, PlaybackError) as error:
            raise ValueError(f"{path.name} does not play: {error}") from error

    def find(name: str) -> dict[str, Any]:
        path = replays / name
        if Path(name).name != name or not name.endswith(SUFFIX) or path.is_symlink() or not path.is_file():
            raise ValueError(f"the run has no replay {name!r}")
        return read(path, path.stat().st_mtime_ns)

    return find


def drawing_of(source: GameSource) -> Draw | None:
    """Pictures of tables of this game for a page; None if it has none, or nothing is there to write them."""
    with closing(source.tables(1)) as tables:
        if pictured(tables) is None or find_spec("PIL") is None:
            return None
    from ludus.observe.pictures import png_address

    def draw(tables: GameBatch, seat: Seat | None) -> str:
        drawn = pictured(tables)
        assert drawn is not None
        return png_address(drawn.render(0, seat))

    return draw
