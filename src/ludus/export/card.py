"""The model card of an exported player: what a model hub reads from README.md. Its numbers come from the run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from ludus.experiment import Experiment
from ludus.export.player import PlayerFacts, WinRate
from ludus.store.files import atomic_write

MARK = "library_name: ludus"
"""A README with this line is a model card that may be replaced."""


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
        "import ludus  # with numpy and onnxruntime; PyTorch is not needed",
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
        lines += [
            f"### {policy['file']} (seats of kind `{policy['kind']}`)",
            "",
            "| array | type | shape |",
            "|---|---|---|",
        ]
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
        f"The file and the player of the run were compared on {parity['decisions']:,} decisions, random and played. "
        f"The largest difference of an output is {worst:.2g} (limit {parity['tolerance']:g}).",
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
