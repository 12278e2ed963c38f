"""What becomes of a person's game: a match of purpose "human" in the ledger, and a replay beside the run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.data.edits import RecordGame
from ludus.data.records import Pair, Result
from ludus.data.replay import SUFFIX, SeatPlayer, encode_replay
from ludus.data.specs import GameSpec
from ludus.games.game import GameSource
from ludus.games.recording import innermost
from ludus.games.versions import game_version, map_name
from ludus.play.session import Ended
from ludus.store.files import atomic_write, make_folder, safe_name

REPLAYS = "replays"
"""The folder of replays in a run folder."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """Who sits where in a person's game."""

    person: str
    opponent: str
    """As the ledger knows it."""
    model: str
    """Id of the opponent's weights; empty for a bot."""
    seat: int
    """The person's."""

    def names(self, spec: GameSpec) -> list[str]:
        """By seat."""
        return [self.person if seat == self.seat else self.opponent for seat in range(spec.num_seats)]

    def sides(self, spec: GameSpec) -> tuple[tuple[str, ...], ...]:
        """Per team: one player, or one for each seat of a team that the two share."""
        names = self.names(spec)
        teams = [tuple(names[seat] for seat in seats) for seats in spec.seats_of_team]
        return tuple(team[:1] if len({*team}) == 1 else team for team in teams)


def finished(spec: GameSpec, line: Line, ended: Ended) -> RecordGame:
    """The game with its result."""
    sides, score = line.sides(spec), ended.score
    models = tuple(
        ",".join("" if player == line.person else line.model for player in players) for players in sides
    )
    return RecordGame(
        sides=sides,
        result=Result(
            match_id=0,
            episodes=1,
            steps=ended.recording.num_steps,
            decisions=tuple(sum(ended.decisions[seat] for seat in seats) for seats in spec.seats_of_team),
            pairs=tuple(
                Pair(
                    side=one,
                    other=other,
                    wins=int(score[one] > score[other]),
                    draws=int(score[one] == score[other]),
                    losses=int(score[one] < score[other]),
                )
                for one in range(len(sides))
                for other in range(one + 1, len(sides))
            ),
            score_sum=score,
            score_square_sum=tuple(one**2 for one in score),
            first_models=models,
            last_models=models,
        ),
    )


def abandoned(spec: GameSpec, line: Line, reason: str) -> RecordGame:
    """The game without one."""
    return RecordGame(sides=line.sides(spec), void=reason)


def write_replay(
    folder: Path,
    source: GameSource,
    address: tuple[str, Mapping[str, Any]],
    line: Line,
    ended: Ended,
    match_id: int,
) -> Path:
    """Keeps the game beside the run; `address` is how the game itself is called, and its options."""
    inner = innermost(source)
    replay = ended.recording.replay(
        game=address[0],
        options=address[1],
        version=game_version(inner),
        map_name=map_name(inner),
        seats=tuple(
            SeatPlayer(name, "" if name == line.person else line.model) for name in line.names(inner.spec)
        ),
        teams=inner.spec.teams,
    )
    make_folder(folder / REPLAYS)
    path = folder / REPLAYS / f"human-{safe_name(line.opponent, 'a player')}-{match_id:06d}{SUFFIX}"
    atomic_write(path, encode_replay(replay))
    return path
