"""`ludus export --ladder`: snapshots of one player as difficulty levels, from weak to strong."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ludus.config import ConfigError
from ludus.data.checks import unknown
from ludus.export.files import Exported, export_player
from ludus.games.exported import SUFFIX
from ludus.observe.league_fold import LeaguePlayer, RunFold
from ludus.store.files import atomic_write
from ludus.store.run_folder import RunFolder

LADDER_FILE = "ladder.json"


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """The levels that were written, weakest first."""

    levels: tuple[Exported, ...]
    file: Path
    document: dict[str, Any]


def export_ladder(
    folder: RunFolder,
    player: str,
    to: Path,
    *,
    levels: int,
    logits: bool = False,
    value: bool = False,
    tell: Callable[[Exported], None] = lambda level: None,
) -> Ladder:
    """Write up to `levels` snapshots of a learning player into the folder `to`, with ratings that are spread evenly."""
    with closing(RunFold(folder)) as fold:
        fold.follow()
        fold.require_players()
        snapshots = fold.snapshots
        if player not in snapshots:
            raise ConfigError(unknown("learning player", player, list(snapshots)))
        summary = fold.summary()
        members = {one.id: one for one in fold.players(summary)}
    rated = [members[one] for one in snapshots[player] if one in members and _strength(members[one]) is not None]
    if not rated:
        raise ConfigError(f"{player!r} has no rated snapshots in {folder.path} yet: train on, or export {player!r} itself")
    written = []
    for number, member in enumerate(choose_levels(rated, levels), start=1):
        file = to / f"level-{number}{SUFFIX}"
        written.append(export_player(folder, member.id, file, logits=logits, value=value, card=number == 1))
        tell(written[-1])
    document = {
        "game": written[0].manifest["game"]["name"],
        "player": player,
        "anchor": summary.anchor,
        "levels": [_level(number, one) for number, one in enumerate(written, start=1)],
    }
    path = to / LADDER_FILE
    atomic_write(path, (json.dumps(document, indent=2) + "\n").encode())
    return Ladder(levels=tuple(written), file=path, document=document)


def choose_levels(rated: Sequence[LeaguePlayer], levels: int) -> list[LeaguePlayer]:
    """The weakest and the strongest member, and those nearest to even steps between them; weakest first."""
    left = sorted(rated, key=lambda one: (_known_strength(one), one.decisions))
    if len(left) <= levels:
        return left
    if levels == 1:
        return left[-1:]
    low, high = _known_strength(left[0]), _known_strength(left[-1])
    chosen = [left.pop(), left.pop(0)]
    for step in range(1, levels - 1):
        wanted = low + (high - low) * step / (levels - 1)
        nearest = min(left, key=lambda one: abs(_known_strength(one) - wanted))
        left.remove(nearest)
        chosen.append(nearest)
    return sorted(chosen, key=_known_strength)


def _strength(member: LeaguePlayer) -> float | None:
    """Elo, or the mean score in a game with one team."""
    return member.score[0] if member.score is not None else member.elo


def _known_strength(member: LeaguePlayer) -> float:
    found = _strength(member)
    assert found is not None
    return found


def _level(number: int, level: Exported) -> dict[str, Any]:
    facts = level.facts
    return {
        "level": number,
        "files": [file.name for file in level.files],
        "player": facts.id,
        "decisions": facts.decisions,
        "rating": facts.rating,
        "score": None if facts.score is None else {"mean": facts.score[0], "standard_error": facts.score[1]},
    }
