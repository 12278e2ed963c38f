"""How close mirror descent comes to an equilibrium without a network: the floor of the settings, and what noise adds.

python benchmarks/exact_mirror_descent.py         writes a report; about half a minute

Each information state is moved by the closed form of `MagnetPolicyGradient`'s objective. With exact values there is no
noise. Otherwise every update plays 4,096 games, and moves only the states that were met, by the mean of what was met
there. "perfect critic": the true values of the histories that were met, as a critic that sees all cards and makes no
mistake would tell them. "returns": in addition, the value of the action taken is corrected by the return divided by its
probability, as `all_actions` with `lambda_=1` does. What a training adds to these figures is due to its network.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from _report import parser, write
from numpy.typing import NDArray

from ludus.data.game_tree import CHANCE, OVER, FlatTree, Probs
from ludus.games import Kuhn, Leduc

UPDATES = 1_000
SCALE = {"kuhn": 1.0, "leduc": 0.25}
"""`algorithm.reward_scale` of the recipes, so that weights here are those of the settings."""
GAMES = 4_096
"""Of a sampled update: about 17,000 decisions of Leduc poker, as the batches of the recipe have."""
MOST_CORRECTION = 20.0
Values = Literal["exact", "perfect critic", "returns"]
SETTINGS: list[tuple[str, Values, float, float, float, float]] = [
    ("kuhn", "exact", 0.3, 0.05, 5.0, 5.0),
    ("kuhn", "exact", 0.3, 0.01, 1.0, 1.0),
    ("kuhn", "exact", 0.3, 0.01, 5.0, 5.0),
    ("leduc", "exact", 0.3, 0.05, 1.0, 1.0),
    ("leduc", "exact", 0.3, 0.05, 5.0, 5.0),
    ("leduc", "exact", 0.3, 0.025, 5.0, 5.0),
    ("leduc", "exact", 0.3, 0.0125, 5.0, 5.0),
    ("leduc", "exact", 0.3, 0.0125, 5.0, 20.0),
    ("leduc", "exact", 0.3, 0.0125, 5.0, 100.0),
    ("leduc", "perfect critic", 0.3, 0.0125, 5.0, 5.0),
    ("leduc", "perfect critic", 0.3, 0.0125, 5.0, 20.0),
    ("leduc", "perfect critic", 0.3, 0.0125, 5.0, 100.0),
    ("leduc", "returns", 0.3, 0.0125, 5.0, 5.0),
    ("leduc", "returns", 0.3, 0.0125, 5.0, 20.0),
    ("leduc", "returns", 0.3, 0.0125, 5.0, 100.0),
]
"""Game, values, magnet weight at the start and at the end (falling exponentially), step weight at both (likewise)."""


@dataclass(frozen=True)
class Sampler:
    """Plays many games on a tree at once. Outcomes of chance are equally likely."""

    tree: FlatTree

    def play(self, probs: Probs, games: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], ...]:
        """The decisions: game, node and action of each; and the last node of each game."""
        tree, totals = self.tree, probs.cumsum(axis=1)
        node, live = np.zeros(games, np.int64), np.arange(games)
        decisions: list[tuple[NDArray[np.int64], ...]] = []
        while len(live := live[tree.seat[node[live]] != OVER]):
            is_chance = tree.seat[node[live]] == CHANCE
            dealt, deciding = live[is_chance], live[~is_chance]
            at = node[deciding]
            draws = rng.random(len(at))[:, None] * totals[tree.infostate[at], -1:]
            action = (totals[tree.infostate[at]] <= draws).sum(axis=1)
            decisions.append((deciding, at, action))
            first, number = self._children[0][node[dealt]], self._children[1][node[dealt]]
            node[dealt] = first + (rng.random(len(dealt)) * number).astype(np.int64)
            node[deciding] = self.child[at, action]
        games_, nodes, actions = (np.concatenate(column) for column in zip(*decisions, strict=True))
        return games_, nodes, actions, node

    def action_values(self, probs: Probs) -> Probs:
        """[nodes, actions]: expected return of the seat that moves."""
        tree, child = self.tree, self.child
        values = tree.returns.copy()
        parent = np.maximum(tree.parent, 0)
        moved = tree.seat[parent] >= 0
        share = np.where(moved, probs[np.where(moved, tree.infostate[parent], 0), np.where(moved, tree.action, 0)], 1.0)
        share *= tree.chance
        for depth in range(int(tree.depth[-1]), 0, -1):
            nodes = np.flatnonzero(tree.depth == depth)
            np.add.at(values, parent[nodes], share[nodes, None] * values[nodes])
        seat = np.maximum(tree.seat, 0)
        return np.where(child >= 0, np.take_along_axis(values[child], seat[:, None, None], 2)[..., 0], 0.0)

    @cached_property
    def child(self) -> NDArray[np.int64]:
        """[nodes, actions]: -1 where there is none."""
        tree = self.tree
        found = np.full((len(tree.seat), tree.legal.shape[1]), -1)
        nodes = np.flatnonzero(tree.seat[np.maximum(tree.parent, 0)] >= 0)
        found[tree.parent[nodes], tree.action[nodes]] = nodes
        return found

    @cached_property
    def _children(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """[nodes]: the first child, and their number."""
        number = np.bincount(self.tree.parent[1:], minlength=len(self.tree.seat))
        return 1 + np.concatenate(([0], number.cumsum()[:-1])), number

    def advantages(self, probs: Probs, scale: float, returns: bool, rng: np.random.Generator) -> tuple[Probs, ...]:
        """[states, actions]: means over what was met, and how often a state was met."""
        tree = self.tree
        game, node, action, last = self.play(probs, GAMES, rng)
        state = tree.infostate[node]
        values = scale * self.action_values(probs)[node]
        found = values - (probs[state] * values).sum(axis=1, keepdims=True)
        if returns:
            gained = scale * tree.returns[last[game], tree.seat[node]] - values[np.arange(len(node)), action]
            found[np.arange(len(node)), action] += gained / np.maximum(probs[state, action], 1 / MOST_CORRECTION)
        total = np.zeros(tree.legal.shape)
        np.add.at(total, state, np.where(tree.legal[state], found, 0.0))
        met = np.bincount(state, minlength=len(total))[:, None]
        return total / np.maximum(met, 1), met


def step(probs: Probs, values: Probs, legal: np.ndarray, *, magnet_weight: float, step_weight: float) -> Probs:
    """The policy that maximises values - magnet_weight * KL(., uniform) - step_weight * KL(., probs)."""
    logits = (step_weight * np.log(np.maximum(probs, 1e-300)) + values) / (step_weight + magnet_weight)
    logits = np.where(legal, logits, -np.inf)
    moved = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: Probs = moved / moved.sum(axis=1, keepdims=True)
    return found


def descend(
    tree: FlatTree, scale: float, values: Values, magnet: tuple[float, float], steps: tuple[float, float]
) -> tuple[list[float], float]:
    """NashConv after each quarter of the updates, and of the average of the policies of the last three tenths."""
    probs, found, plans = tree.uniform(), list[float](), list[Probs]()
    sampler, rng = Sampler(tree), np.random.default_rng(0)
    for update in range(UPDATES):
        progress = update / UPDATES
        magnet_weight, step_weight = (low * (high / low) ** progress for low, high in (magnet, steps))
        if values == "exact":
            advantages, met = scale * tree.action_values(probs), np.ones((len(probs), 1))
        else:
            advantages, met = sampler.advantages(probs, scale, values == "returns", rng)
        moved = step(probs, advantages, tree.legal, magnet_weight=magnet_weight, step_weight=step_weight)
        probs = np.where(met > 0, moved, probs)
        if (update + 1) % (UPDATES // 4) == 0:
            found.append(tree.nash_conv(probs))
        if update >= 0.7 * UPDATES and update % 4 == 0:
            plans.append(tree.plan(probs))
    return found, tree.nash_conv(tree.behaviour(np.mean(plans, axis=0)))


def main() -> None:
    parser(__doc__).parse_args()
    trees = {"kuhn": FlatTree.build(Kuhn().tree()), "leduc": FlatTree.build(Leduc().tree())}
    rows = []
    for game, values, start, end, first, last in SETTINGS:
        found, averaged = descend(trees[game], SCALE[game], values, (start, end), (first, last))
        changed = f"{first:g}" if first == last else f"{first:g} to {last:g}"
        figures = (*found, averaged)
        rows.append([game, values, f"{start} to {end}", changed, *(f"{value:.4f}" for value in figures)])
        print(*rows[-1], flush=True)
    after = (f"after {UPDATES * k // 4:,} updates" for k in (1, 2, 3, 4))
    columns = ("game", "values", "magnet_weight", "step_weight", *after, "average of the last 30 % of the policies")
    title = "Mirror descent without a network: NashConv"
    write("exact_mirror_descent", title, [("Results", columns, rows)])


if __name__ == "__main__":
    main()
