"""Replays of a run, made ready for the page that steps through them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ludus.cli.replay_games import make_recorded_game
from ludus.config import decode
from ludus.data.replay import SUFFIX, ReplayError, decode_replay
from ludus.games.game import GameBatch, GameSource, Seat
from ludus.games.pictures import pictured
from ludus.games.playback import PlaybackError
from ludus.games.recording import innermost
from ludus.play.replays import replay_document
from ludus.play.views import Draw

if TYPE_CHECKING:
    from ludus.store.run_folder import RunFolder

KEPT = 16
"""Documents that are held in memory: several people may look at the same game."""


def replay_reader(folder: RunFolder) -> Callable[[str], dict[str, Any]]:
    """From the name of a file in the run's folder of replays to its document. A ValueError or OSError says
    why there is none. Imports the code of the run's own game, and of no other that a replay may name."""
    replays = folder.path / "replays"

    @lru_cache(maxsize=1)
    def own_game() -> GameSource:
        game: GameSource = innermost(decode(msgspec.json.decode(folder.facts.experiment)["game"]))
        return game

    @lru_cache(maxsize=KEPT)
    def read(path: Path, _changed: int) -> dict[str, Any]:
        try:
            replay = decode_replay(path.read_bytes())
            source = make_recorded_game(replay, trusted=own_game())
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
    from ludus.observe.captions import png_address

    def draw(tables: GameBatch, seat: Seat | None) -> str:
        drawn = pictured(tables)
        assert drawn is not None
        return png_address(drawn.render(0, seat))

    return draw
