"""A league as plain values, for scripts: what `ludus league --json` prints."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec

from ludus.league.league import League
from ludus.league.ratings import OpenSkillTable
from ludus.league.summary import LeagueSummary
from ludus.store.metrics_file import read_metrics
from ludus.store.run_folder import RunFolder


def read_health(folder: RunFolder, voids: Counter[str]) -> dict[str, Any]:
    """What went wrong so far, by cause, and what the learners measured last: lag, and decisions that were
    stale, dropped or refused."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for name in ("faults", "train"):
        path = folder.metrics / f"{name}.jsonl"
        rows[name] = read_metrics(path)[0] if path.exists() else []
    faults = rows["faults"]
    return {
        "faults": dict(Counter(row["class"] for row in faults)),
        "restarts": dict(Counter(row["class"] for row in faults if "started again" in row["then"])),
        "voids": dict(voids),
        "latest": rows["train"][-1] if rows["train"] else {},
    }


def as_plain(league: League, summary: LeagueSummary, skills: OpenSkillTable) -> dict[str, Any]:
    """The league as JSON: one entry per player, the payoff as matrices in the same order."""
    players = []
    for player, rating in zip(summary.players, summary.ratings, strict=True):
        interval = rating.interval()
        standing = league.standings.get(player.id)
        players.append(
            {
                "id": player.id,
                "role": player.role,
                "parent": player.parent,
                "model": player.model,
                "weights": player.weights,
                "reason": player.reason,
                "decisions": standing.decisions if standing else player.parent_decisions,
                "active": player.id in league.active,
                "elo": rating.elo,
                "elo_interval": list(interval) if interval else None,
                "openskill": skills.skill(player.id),
                "games": rating.games,
                "equilibrium": summary.equilibrium.get(player.id, 0.0),
                "score": summary.scores.get(player.id),
                "opponents": dict(league.opponent_law(player.id)) if player.learning else None,
                "settings": league.settings_of(player.id) if player.learning else None,
                "lineage": msgspec.to_builtins(league.lineage.descents.get(player.id)),
            }
        )
    book = league.matches
    return {
        "players": players,
        "anchor": summary.anchor,
        "tags": {
            player: {
                tag: {"player": snapshot, "model": league.players[snapshot].model}
                for tag, snapshot in tags.items()
            }
            for player, tags in summary.tags.items()
        },
        "measures": msgspec.to_builtins(summary.measures),
        "win_rates": summary.win_rates.tolist(),
        "games": summary.games.tolist(),
        "matches": {
            "issued": book.issued,
            "finished": book.finished,
            "evaluations": book.evaluations,
            "void": book.void,
            "open": len(book.open_matches),
        },
        "settings": league.settings,
        "events": league.num_events,
        "digest": league.state_digest(),
    }
