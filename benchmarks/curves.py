"""Draws what runs have learned: the examinations of their snapshots over the decisions they trained on.

python benchmarks/curves.py runs/slimevolley --against baseline --picture docs/pictures/slimevolley.png
python benchmarks/curves.py runs/atari_pong --matches           of a game of one team: all matches in training
python benchmarks/curves.py runs/microrts --rating              Elo instead of the score
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ludus.data.records import MatchFinished, ModelId
from ludus.store.run_folder import RunFolder


@dataclass(frozen=True, slots=True)
class Point:
    """A snapshot: how long it had trained, what it reached, and the half width of the 95 % interval."""

    decisions: int
    value: float
    error: float
    games: int


def league_of(run: Path) -> list[dict[str, Any]]:
    program = [sys.executable, "-m", "ludus.cli.main", "league", str(run), "--json"]
    shown = subprocess.run(program, check=True, capture_output=True, text=True).stdout
    players: list[dict[str, Any]] = json.loads(shown)["players"]
    return [player for player in players if player["role"] == "frozen"]


def scores(run: Path, against: str | None) -> list[Point]:
    """The latest examination of every snapshot against one opponent."""
    trained = {player["id"]: player["decisions"] for player in league_of(run)}
    points = {}
    for line in (run / "metrics" / "evaluations.jsonl").read_text().splitlines():
        seen = json.loads(line)
        player, *others = seen["players"]
        if player in trained and others == ([against] if against else []) and not seen["greedy"]:
            error = 1.96 * seen["score_standard_error"]
            points[player] = Point(trained[player], seen["score"], error, seen["episodes"])
    return sorted(points.values(), key=lambda point: point.decisions)


def matches(run: Path) -> list[Point]:
    """Every match of training, by the decisions that its weights had seen when it began."""
    lines = (run / "metrics" / "train.jsonl").read_text().splitlines()
    trained = [0, *(json.loads(line)["decisions"] for line in lines)]
    folder = RunFolder.open(str(run))
    points = []
    for _, event in folder.ledger().replay(after=0):
        if isinstance(event, MatchFinished):
            result = event.result
            step = min(ModelId.parse(result.first_models[0].partition(",")[0]).step, len(lines))
            mean = result.score_sum[0] / result.episodes
            spread = max(result.score_square_sum[0] / result.episodes - mean**2, 0.0)
            error = 1.96 * (spread / result.episodes) ** 0.5
            points.append(Point(trained[step], mean, error, result.episodes))
    return sorted(points, key=lambda point: point.decisions)


def ratings(run: Path) -> list[Point]:
    return [
        Point(player["decisions"], player["elo"], player["elo_interval"][1] - player["elo"], player["games"])
        for player in sorted(league_of(run), key=lambda player: player["decisions"])
        if player["elo"] is not None  # the latest may not have played yet
    ]


def draw(curves: dict[str, list[Point]], label: str, picture: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6))
    for name, points in curves.items():
        millions = [point.decisions / 1e6 for point in points]
        errors = [point.error for point in points]
        axes.errorbar(
            millions, [point.value for point in points], errors, label=name, marker="o", markersize=4, capsize=2
        )
    axes.set_xlabel("decisions trained on, millions")
    axes.set_ylabel(label)
    axes.grid(alpha=0.3)
    axes.axhline(0, color="0.5", linewidth=0.8)
    if len(curves) > 1:
        axes.legend()
    figure.tight_layout()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--against", help="the opponent of the examinations")
    parser.add_argument("--matches", action="store_true", help="all matches instead of the examinations")
    parser.add_argument("--rating", action="store_true", help="Elo on the league's own scale")
    parser.add_argument("--picture", type=Path, help="write a picture too (needs the extra bench)")
    chosen = parser.parse_args()
    label = "Elo" if chosen.rating else f"score against {chosen.against}" if chosen.against else "score"
    measure = ratings if chosen.rating else matches if chosen.matches else partial(scores, against=chosen.against)
    curves = {run.name: measure(run) for run in chosen.runs}
    for name, points in curves.items():
        if not points:
            raise SystemExit(
                f"{name}: no snapshot was examined{f' against {chosen.against}' if chosen.against else ''}"
            )
        print(f"{name}\n\n| decisions | {label} | games |\n|---|---|---|")
        for point in points:
            print(f"| {point.decisions:,} | {point.value:+.2f} ± {point.error:.2f} | {point.games:.0f} |")
    if chosen.picture is not None:
        draw(curves, label, chosen.picture)


if __name__ == "__main__":
    main()
