"""Compares a tensor game with its CPU twin, move for move."""

from __future__ import annotations

from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from ludus.games.device.tensor_game import TensorGame, TensorTwin, random_starts, select, tensor_game_of
from ludus.games.game import GameSource, allocate_actions


def tensor_faults(source: GameSource, *, steps: int, seed: int = 0, tables: int = 64) -> list[str]:
    """What is wrong with the tensor game of `source`; empty if nothing is, or if it has none."""
    game = tensor_game_of(source)
    if game is None:
        return []
    found = fixed_shape_faults(game, rows=tables, seed=seed)
    if not found and isinstance(game, TensorTwin):
        found = twin_differences(game, game.game, steps=steps, seed=seed, tables=tables)
    return found


@torch.no_grad()
def twin_differences(game: TensorGame, source: GameSource, *, steps: int, seed: int, tables: int) -> list[str]:
    """Where a tensor game differs from its CPU twin over `steps` steps at `tables` tables of random play: whose turn it
    is, observations and legal masks of the seats that act, rewards, ends and scores. Both get the same seeds, from
    which chance follows."""
    rng = np.random.default_rng(seed)
    with closing(source.tables(tables)) as there, closing(game.tables(tables)) as here:
        fresh = np.arange(tables)
        for step in range(steps):
            seeds = rng.integers(0, 2**64, len(fresh), np.uint64)
            there.reset(fresh, seeds)
            here.reset(fresh, seeds)
            mine, theirs = here.view, there.view
            acting = np.nonzero(theirs.to_act)
            pairs = {
                "to_act": (mine.to_act, theirs.to_act),
                "reward": (mine.reward, theirs.reward),
                "over": (mine.over, theirs.over),
                "score at the end": (mine.score[mine.over], theirs.score[mine.over]),
                f"legal {game.head}": (mine.legal[0][game.head][acting], theirs.legal[0][game.head][acting]),
            }
            pairs |= {
                f"observation {name}": (array[acting], theirs.observation[0][name][acting])
                for name, array in mine.observation[0].items()
            }
            if not np.array_equal(mine.to_act, theirs.to_act):  # the other comparisons need equal rows
                pairs = {"to_act": pairs["to_act"]}
            if found := [_differ(what, *pair, step) for what, pair in pairs.items() if not _equal(*pair)]:
                return found
            actions = allocate_actions(source.spec, tables)
            legal = theirs.legal[0][game.head]
            drawn = np.where(legal, rng.random(legal.shape), -1.0).argmax(-1)
            actions[0][game.head][acting] = drawn[acting]
            there.step(actions)
            here.step(actions)
            fresh = np.flatnonzero(there.view.over & (rng.random(tables) < 0.5))
    return []


@torch.no_grad()
def fixed_shape_faults(game: TensorGame, *, rows: int = 16, seed: int = 0) -> list[str]:
    """What of a tensor game would not work in an engine: shapes, types or rows that depend on other rows."""
    generator = torch.Generator().manual_seed(seed)
    moves = torch.randint(0, min(8, game.spec.max_length), (rows,), generator=generator)
    state = random_starts(game, moves, 8, lambda n, k: torch.rand(n, k, generator=generator))
    begun = game.start(torch.rand(rows, game.start_draws, generator=generator))
    found = [
        f"state {name}: {tuple(one.shape)} {one.dtype} at the start, {tuple(two.shape)} {two.dtype} after steps"
        for name, one in begun.items()
        if (two := state[name]).shape != one.shape or two.dtype != one.dtype
    ]
    seats = torch.zeros(rows, dtype=torch.int64)
    shapes: dict[str, tuple[Tensor, tuple[int, ...]]] = {
        f"observation {name}": (part, (rows, *game.spec.kinds[0].observation.arrays[name].shape))
        for name, part in game.observe(state, seats).items()
    }
    shapes |= {
        "legal": (game.legal(state, seats), (rows, game.num_options)),
        "to_act": (game.to_act(state), (rows, game.spec.num_seats)),
    }
    found += [
        f"{name}: shape {tuple(array.shape)}, expected {shape}"
        for name, (array, shape) in shapes.items()
        if tuple(array.shape) != shape
    ]
    if not found and not bool(game.legal(state, seats).any(1).all()):
        found.append("legal: a row has no legal option; seats that need not act need one too")
    alone = {name: tensor[:1] for name, tensor in select(torch.ones(rows, dtype=torch.bool), state, state).items()}
    for name, part in game.observe(alone, seats[:1]).items():
        if not torch.equal(part[0], game.observe(state, seats)[name][0]):
            found.append(f"observation {name}: a table looks different beside others")
    return found


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, atol=1e-6)


def _differ(what: str, one: np.ndarray, other: np.ndarray, step: int) -> str:
    if one.shape != other.shape:
        return f"{what}, step {step}: shape {one.shape}, and {other.shape} of the CPU game"
    first = tuple(np.argwhere(~np.isclose(one, other, atol=1e-6))[0])
    return f"{what}{list(map(int, first))}, step {step}: {one[first]}, and {other[first]} of the CPU game"
