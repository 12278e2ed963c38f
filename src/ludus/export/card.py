"""The model card of an exported player: what a model hub reads from README.md. Its numbers come from the run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from ludus.experiment import Experiment
from ludus.league.payoff import wilson_interval
from ludus.observe.league_fold import LeaguePlayer, RunFold
from ludus.store.files import atomic_write
from ludus.store.run_folder import RunFolder, read_metrics

MARK = "library_name: ludus"
"""A README with this line is a model card that may be replaced."""


@dataclass(frozen=True, kw_only=True)
class WinRate:
    """Evaluation games against one bot; a draw is half a win."""

    opponent: str
    greedy: bool
    games: int
    win_rate: float
    interval: tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class PlayerFacts:
    """What a run knows of one of its players."""

    id: str
    """In the league; the snapshot behind a tag."""
    decisions: int
    """That it was trained on."""
    rating: dict[str, Any] | None
    """Elo with its interval of 95 %, the anchor whose Elo is 0, and the games behind it."""
    score: tuple[float, float] | None
    """Mean score and standard error, in games with one team."""
    win_rates: tuple[WinRate, ...]
    exploitability: str | None
    """The latest measure, in words."""


def player_facts(folder: RunFolder, player: str, model: str) -> PlayerFacts:
    """`model`: of the weights that are exported."""
    with closing(RunFold(folder)) as fold:
        fold.follow()
        fold.require_players()
        summary = fold.summary()
        known = fold.players(summary)
    found = _member(known, player, model)
    rating = None
    if found is not None and found.elo is not None and found.elo_interval is not None:
        low, high = found.elo_interval
        rating = {"elo": found.elo, "low": low, "high": high, "anchor": summary.anchor, "games": found.games}
    name = player if found is None else found.id
    bots = [one.id for one in known if one.role == "scripted"]
    return PlayerFacts(
        id=name,
        decisions=0 if found is None else found.decisions,
        rating=rating,
        score=None if found is None else found.score,
        win_rates=_win_rates(folder, name, model, bots),
        exploitability=_exploitability(folder, model),
    )


def _member(known: list[LeaguePlayer], player: str, model: str) -> LeaguePlayer | None:
    by_id = {one.id: one for one in known}
    frozen = [one for one in known if one.model == model and one.role == "frozen"]
    return by_id.get(player) or (frozen[-1] if frozen else None)


def _rows(folder: RunFolder, name: str) -> list[dict[str, Any]]:
    path = folder.metrics / f"{name}.jsonl"
    return read_metrics(path)[0] if path.exists() else []


def _win_rates(folder: RunFolder, player: str, model: str, bots: list[str]) -> tuple[WinRate, ...]:
    """From the evaluations of this model, as `ludus train` and `ludus eval` keep them."""
    counts: dict[tuple[str, bool], tuple[float, int]] = {}
    for row in _rows(folder, "evaluations"):
        players, models = row.get("players", []), row.get("models", [])
        if len(players) != 2 or players[1] not in bots or "win_rate" not in row or models[:1] != [model]:
            continue
        key = players[1], bool(row.get("greedy"))
        points, games = counts.get(key, (0.0, 0))
        counts[key] = points + row["wins"] + row["draws"] / 2, games + row["episodes"]
    return tuple(
        WinRate(
            opponent=opponent,
            greedy=greedy,
            games=games,
            win_rate=points / games,
            interval=wilson_interval(points, games),
        )
        for (opponent, greedy), (points, games) in sorted(counts.items())
    )


def _exploitability(folder: RunFolder, model: str) -> str | None:
    for row in reversed(_rows(folder, "exploits")):
        if [one.get("model") for one in row.get("players", ())] != [model]:
            continue
        if exact := row.get("exact"):
            return (
                f"{exact['exploitability']:.4f} (exact: the mean score of a best response; NashConv "
                f"{exact['nash_conv']:.4f})"
            )
        if trained := row.get("trained"):
            measured = trained["measured"]
            low, high = measured["win_rate_interval"]
            return (
                f"at least: a best response trained for {trained['budget']:,} decisions wins "
                f"{measured['win_rate']:.1%} ({low:.1%} to {high:.1%}) of {measured['episodes']:,} games"
            )
    return None


def write_card(path: Path, facts: PlayerFacts, manifest: Mapping[str, Any], experiment: Experiment) -> None:
    front = yaml.safe_dump(_front_matter(facts, manifest), sort_keys=False, allow_unicode=True)
    atomic_write(path, f"---\n{front}---\n\n{_body(facts, manifest, experiment)}".encode())


def _front_matter(facts: PlayerFacts, manifest: Mapping[str, Any]) -> dict[str, Any]:
    game = manifest["game"]["name"]
    metrics: list[dict[str, Any]] = []
    if facts.rating is not None:
        elo = {"type": "elo", "name": f"Elo above {facts.rating['anchor']}", "value": round(facts.rating["elo"], 1)}
        metrics.append(elo)
    metrics += [
        {"type": "win_rate", "name": f"win rate against {_opponent(one)}", "value": round(one.win_rate, 4)}
        for one in facts.win_rates
    ]
    if facts.score is not None:
        metrics.append({"type": "mean_reward", "name": "mean score", "value": round(facts.score[0], 4)})
    result = {
        "task": {"type": "reinforcement-learning", "name": "reinforcement learning"},
        "dataset": {"name": game, "type": game},
        "metrics": metrics,
    }
    front: dict[str, Any] = {
        "library_name": "ludus",
        "pipeline_tag": "reinforcement-learning",
        "tags": ["reinforcement-learning", "multi-agent", "self-play", "onnx", game],
    }
    if metrics:
        front["model-index"] = [{"name": f"{game}-{facts.id}", "results": [result]}]
    return front


def _opponent(one: WinRate) -> str:
    return f"{one.opponent} (greedy)" if one.greedy else one.opponent


def _body(facts: PlayerFacts, manifest: Mapping[str, Any], experiment: Experiment) -> str:
    game, policies = manifest["game"]["name"], manifest["policies"]
    parity = manifest["parity"]
    worst = max(parity["largest_difference"].values(), default=0.0)
    view = experiment.of_role(facts.id if facts.id in experiment.league.roles else None)
    lines = [
        f"# {facts.id} of {game}",
        "",
        f"A player of a league that Ludus trained on `{game}`, as ONNX.",
        "",
        "## Strength",
        "",
        *_strength(facts),
        "",
        "## Use",
        "",
        "```python",
        "import ludus  # pip install ludus-league onnxruntime; PyTorch is not needed",
        "",
        f'agent = ludus.load_agent("{policies[0]["file"]}", greedy=False)',
        "action = agent.act(observation, legal)  # agent.reset() before every episode",
        "```",
        "",
        "Without Ludus, onnxruntime or an engine runs the file. Every input is float32 and has a leading axis of rows.",
        f"`uniforms` holds a random number from 0 to 1 for each draw; {manifest['greedy_uniform']:g} takes the most "
        "probable option.",
        "`next_memory.NAME` of one decision is `memory.NAME` of the next; zeros begin an episode.",
        "",
    ]
    for policy in policies:
        lines += [f"### {policy['file']} (seats of kind `{policy['kind']}`)", "", "| array | type | shape |", "|---|---|---|"]
        for way in ("inputs", "outputs"):
            lines += [
                f"| {way[:-1]} `{one['name']}` | {one['dtype']} | {['rows', *one['shape']]} |".replace("'", "")
                for one in policy[way]
            ]
        lines.append("")
    lines += [
        "## Training",
        "",
        f"- Decisions: {facts.decisions:,}",
        f"- Run: `{manifest['run']}`, player `{manifest['player']}`, model `{manifest['model']}`, "
        f"{manifest['weights']} weights",
        f"- Network: `{view.model}`",
        f"- Algorithm: `{view.algorithm}`",
        f"- Seed: {experiment.seed}",
        "",
        "## Check",
        "",
        f"The file and the player of the run were compared on {parity['decisions']:,} decisions, random and played. The "
        f"largest difference of an output is {worst:.2g} (limit {parity['tolerance']:g}).",
        "",
        f"- Weights: sha256 `{manifest['weights_sha256']}`",
        *(f"- {one['file']}: sha256 `{one['sha256']}`, {one['bytes']:,} bytes" for one in policies),
        f"- ONNX opset {manifest['opset']}; "
        + ", ".join(f"{name} {number}" for name, number in manifest["versions"].items()),
        "",
    ]
    return "\n".join(lines)


def _strength(facts: PlayerFacts) -> list[str]:
    lines = []
    if facts.rating is not None:
        rating = facts.rating
        lines.append(
            f"- Elo: {rating['elo']:+.0f} ({rating['low']:+.0f} to {rating['high']:+.0f}, 95 %), where "
            f"`{rating['anchor']}` is 0"
        )
    if facts.score is not None:
        lines.append(f"- Mean score: {facts.score[0]:+.3f} ± {1.96 * facts.score[1]:.3f}")
    lines += [
        f"- Wins {one.win_rate:.1%} ({one.interval[0]:.1%} to {one.interval[1]:.1%}, 95 %) of {one.games:,} games "
        f"against `{one.opponent}`{', both greedy' if one.greedy else ''}"
        for one in facts.win_rates
    ]
    lines.append(f"- Exploitability: {facts.exploitability or 'not measured (`ludus exploit` measures it)'}")
    return lines
