"""How well critics that see more predict returns of episodes that they have not seen.

python benchmarks/central_critic.py [--game mpe2.simple_spread_v3] [--activation relu]

Plays random episodes and shows them in batches of 32 to critics of the same size. Each critic first predicts the
discounted returns of a batch, and then learns them for 8 epochs, as MAPPO does. Printed is the share of the variance
that the predictions explain, in the last half of the batches, for each of three seeds of weights.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import torch

from ludus import ActorCritic
from ludus.data.specs import ObservationSpec
from ludus.games import PettingZoo
from ludus.games.bots import RandomBot, act_among
from ludus.games.game import allocate_actions

GAMMA = 0.95
USED, PLAYED = 25, 45  # the steps after those that are used make their returns nearly complete
EPISODES, TABLES, BATCH = 896, 64, 32
CRITICS = {"own observation": (), "with state()": ("state",), "with the others' observations": ("other1", "other2")}


def play(source: PettingZoo) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Observations by name and returns, [steps, episodes, seats, ...]."""
    batch, rng = source.tables(TABLES), np.random.default_rng(0)
    rows: dict[str, list[np.ndarray]] = {}
    returns = []
    for _ in range(EPISODES // TABLES):
        batch.reset(np.arange(TABLES), rng.integers(0, 2**31, TABLES).astype(np.uint64))
        seen: dict[str, list[np.ndarray]] = {name: [] for name in batch.view.observation[0]}
        rewards = []
        for _ in range(PLAYED):
            for name, array in batch.view.observation[0].items():
                seen[name].append(array.copy())
            actions = allocate_actions(source.spec, TABLES)
            act_among(RandomBot(), batch, np.ones((TABLES, 1), np.bool_), rng, actions)
            batch.step(actions)
            rewards.append(batch.view.reward.copy())
        total = np.zeros_like(rewards)
        for step in reversed(range(PLAYED)):
            total[step] = rewards[step] + (GAMMA * total[step + 1] if step + 1 < PLAYED else 0.0)
        returns.append(total[:USED])
        for name, arrays in seen.items():
            rows.setdefault(name, []).append(np.stack(arrays[:USED]))
    joined = {name: torch.from_numpy(np.concatenate(arrays, axis=1)) for name, arrays in rows.items()}
    target = torch.from_numpy(np.concatenate(returns, axis=1))
    return joined, (target - target.mean()) / target.std()


def explained(
    source: PettingZoo,
    parts: tuple[str, ...],
    activation: str,
    seed: int,
    data: dict[str, torch.Tensor],
    target: torch.Tensor,
) -> float:
    (kind,) = source.spec.kinds
    own = kind.observation
    chosen = ObservationSpec(parts=own.parts, critic={name: own.critic[name] for name in parts})
    model = ActorCritic(hidden=(64, 64), activation=activation, central_critic=bool(parts))  # type: ignore[arg-type]
    critic = model.build(replace(kind, observation=chosen), seed).critic
    torch.manual_seed(seed)
    optimiser = torch.optim.Adam(critic.parameters(), lr=7e-4, eps=1e-5)  # type: ignore[attr-defined]
    found = []
    for start in range(0, EPISODES, BATCH):
        episodes = slice(start, start + BATCH)
        rows = {name: array[:, episodes].flatten(0, 2) for name, array in data.items() if name in critic.array_names}
        wanted = target[:, episodes].flatten()
        with torch.no_grad():
            error = wanted - critic(rows, torch.empty(0))[..., 0]
            found.append(float(1.0 - error.var() / wanted.var()))
        for _ in range(8):
            for part in torch.randperm(len(wanted)).chunk(2):
                value = critic({name: array[part] for name, array in rows.items()}, torch.empty(0))[..., 0]
                loss = 0.5 * (value - wanted[part]).square().mean()
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
    return float(np.mean(found[len(found) // 2 :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="mpe2.simple_spread_v3", help="of PettingZoo, with three seats of one kind")
    parser.add_argument("--activation", default="relu")
    given = parser.parse_args()
    options = {"max_cycles": PLAYED + 1}
    source = PettingZoo(env_name=given.game, options=options, critic_state=True, critic_observations=True)
    data, target = play(source)
    for name, parts in CRITICS.items():
        shares = [explained(source, parts, given.activation, seed, data, target) for seed in range(3)]
        print(f"{name:<30} {' '.join(f'{share:6.2f}' for share in shares)}", flush=True)


if __name__ == "__main__":
    main()
