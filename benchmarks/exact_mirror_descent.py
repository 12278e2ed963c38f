"""How close mirror descent comes to an equilibrium without noise and without a network: the floor of the settings.

python benchmarks/exact_mirror_descent.py         writes a report; about ten seconds

Each information state is moved by the closed form of `MagnetPolicyGradient`'s objective, with exact action values. What
a training adds to these figures is due to its network and to the noise of its samples.
"""

from __future__ import annotations

import numpy as np
from _report import parser, write

from ludus.data.game_tree import FlatTree, Probs
from ludus.games import Kuhn, Leduc

UPDATES = 1_000
SCALE = {"kuhn": 1.0, "leduc": 0.25}
"""`algorithm.reward_scale` of the recipes, so that weights here are those of the settings."""
SETTINGS = [
    ("kuhn", 0.3, 0.05, 5.0),
    ("kuhn", 0.3, 0.01, 1.0),
    ("kuhn", 0.3, 0.01, 5.0),
    ("leduc", 0.3, 0.05, 1.0),
    ("leduc", 0.3, 0.05, 5.0),
    ("leduc", 0.3, 0.025, 5.0),
    ("leduc", 0.3, 0.0125, 5.0),
    ("leduc", 0.3, 0.0125, 10.0),
]
"""Game, magnet weight at the start and at the end (falling exponentially), step weight."""


def step(probs: Probs, values: Probs, legal: np.ndarray, *, magnet_weight: float, step_weight: float) -> Probs:
    """The policy that maximises values - magnet_weight * KL(., uniform) - step_weight * KL(., probs)."""
    logits = (step_weight * np.log(np.maximum(probs, 1e-300)) + values) / (step_weight + magnet_weight)
    logits = np.where(legal, logits, -np.inf)
    moved = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: Probs = moved / moved.sum(axis=1, keepdims=True)
    return found


def descend(tree: FlatTree, scale: float, start: float, end: float, step_weight: float) -> list[float]:
    """NashConv after each quarter of the updates."""
    probs, found = tree.uniform(), []
    for update in range(UPDATES):
        weight = start * (end / start) ** (update / UPDATES)
        values = scale * tree.action_values(probs)
        probs = step(probs, values, tree.legal, magnet_weight=weight, step_weight=step_weight)
        if (update + 1) % (UPDATES // 4) == 0:
            found.append(tree.nash_conv(probs))
    return found


def main() -> None:
    parser(__doc__).parse_args()
    trees = {"kuhn": FlatTree.build(Kuhn().tree()), "leduc": FlatTree.build(Leduc().tree())}
    rows = []
    for game, start, end, step_weight in SETTINGS:
        found = descend(trees[game], SCALE[game], start, end, step_weight)
        rows.append([game, f"{start} to {end}", f"{step_weight}", *(f"{value:.4f}" for value in found)])
        print(*rows[-1], flush=True)
    columns = ("game", "magnet_weight", "step_weight", *(f"after {UPDATES * k // 4:,} updates" for k in (1, 2, 3, 4)))
    title = "Mirror descent with exact values: NashConv"
    write("exact_mirror_descent", title, [("Results", columns, rows)])


if __name__ == "__main__":
    main()
