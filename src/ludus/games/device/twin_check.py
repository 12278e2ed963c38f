"""Compares a tensor game with its CPU twin, move for move."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import torch
from torch import Tensor

from ludus.data.specs import Pointer
from ludus.games.bots import RandomBot, act_among
from ludus.games.device.tensor_game import TensorGame, TensorState, TensorTwin, random_starts, select, tensor_game_of
from ludus.games.game import Bot, GameSource, allocate_actions


def tensor_faults(source: GameSource, *, steps: int, seed: int = 0, tables: int = 64) -> list[str] | None:
    """What is wrong with the tensor game of `source`; None if it has none."""
    game = tensor_game_of(source)
    if game is None:
        return None
    found = fixed_shape_faults(game, rows=tables, seed=seed)
    if not found and isinstance(game, TensorTwin):
        found = twin_differences(game, game.game, steps=steps, seed=seed, tables=tables)
    return found


@torch.no_grad()
def twin_differences(
    game: TensorGame, source: GameSource, *, steps: int, seed: int, tables: int, bots: Sequence[Bot] = (RandomBot(),)
) -> list[str]:
    """Where a tensor game differs from its CPU twin over `steps` steps at `tables` tables: whose turn it is,
    observations and legal masks of the seats that act, rewards, ends, scores and the clock, and what is seen at the end
    of truncated episodes. Both get the same seeds, from which chance follows. The bots play in turn, one seat after the
    other."""
    rng = np.random.default_rng(seed)
    with closing(source.tables(tables)) as there, closing(game.tables(tables)) as here:
        fresh = np.arange(tables)
        for step in range(steps):
            seeds = rng.integers(0, 2**64, len(fresh), np.uint64)
            if len(fresh):
                there.reset(fresh, seeds)
                here.reset(fresh, seeds)
            mine, theirs = here.view, there.view
            seen = np.nonzero(theirs.to_act | theirs.truncated[:, None])
            ended = theirs.over | theirs.truncated
            pairs = {
                "to_act": (mine.to_act, theirs.to_act),
                "reward": (mine.reward, theirs.reward),
                "over": (mine.over, theirs.over),
                "truncated": (mine.truncated, theirs.truncated),
                "score at the end": (mine.score[ended], theirs.score[ended]),
                "further rewards": (mine.rewards[0], theirs.rewards[0]),
            }
            if source.spec.timed:
                pairs["clock"] = (mine.clock, theirs.clock)
            pairs |= {
                f"legal {head}": (mask[seen], theirs.legal[0][head][seen]) for head, mask in mine.legal[0].items()
            }
            pairs |= {
                f"observation {name}": (array[seen], theirs.observation[0][name][seen])
                for name, array in mine.observation[0].items()
            }
            if not np.array_equal(mine.to_act, theirs.to_act):  # the other comparisons need equal rows
                pairs = {"to_act": pairs["to_act"]}
            if found := [_differ(what, *pair, step) for what, pair in pairs.items() if not _equal(*pair)]:
                return found
            actions = allocate_actions(source.spec, tables)
            for number, bot in enumerate(bots):
                plays = (np.arange(tables)[:, None] + np.arange(source.spec.num_seats)) % len(bots) == number
                act_among(bot, there, plays, rng, actions)
            there.step(actions)
            here.step(actions)
            fresh = np.flatnonzero((theirs.over | theirs.truncated) & (rng.random(tables) < 0.5))
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
    if game.observe(state, seats).keys() != game.spec.kinds[0].observation.arrays.keys():
        wanted = ", ".join(game.spec.kinds[0].observation.arrays)
        return [*found, f"observation: arrays {', '.join(game.observe(state, seats))}, expected {wanted}"]
    shapes: dict[str, tuple[Tensor, tuple[int, ...]]] = {
        f"observation {name}": (part, (rows, *game.spec.kinds[0].observation.arrays[name].shape))
        for name, part in game.observe(state, seats).items()
    }
    kind, masks = game.spec.kinds[0], game.masks(state, seats)
    shapes |= {f"legal {head}": (mask, (rows, kind.num_options(head))) for head, mask in masks.items()}
    shapes["to_act"] = (game.to_act(state), (rows, game.spec.num_seats))
    if masks.keys() != kind.legal_arrays.keys():
        found.append(f"legal: masks of {', '.join(masks)}, expected those of {', '.join(kind.legal_arrays)}")
    found += [
        f"{name}: shape {tuple(array.shape)}, expected {shape}"
        for name, (array, shape) in shapes.items()
        if tuple(array.shape) != shape
    ]
    for head, mask in masks.items():
        if not found and kind.action.heads[head].when is None and not bool(mask.any(1).all()):
            found.append(f"legal {head}: a row has no legal option; seats that need not act need one too")
    found += [] if found else _bot_faults(game, state, seats)
    alone = {name: tensor[:1] for name, tensor in select(torch.ones(rows, dtype=torch.bool), state, state).items()}
    for name, part in game.observe(alone, seats[:1]).items():
        if not torch.equal(part[0], game.observe(state, seats)[name][0]):
            found.append(f"observation {name}: a table looks different beside others")
    return found


def _bot_faults(game: TensorGame, state: TensorState, seats: Tensor) -> list[str]:
    """What of the bots of a tensor game would not work in an engine."""
    bots, kind, found = game.tensor_bots(), game.spec.kinds[0], []
    for number, name in enumerate(() if bots is None else bots.names):
        assert bots is not None
        draws, masks = torch.rand(len(seats), bots.draws), game.masks(state, seats)
        chosen = bots.act(torch.full_like(seats, number), game.observe(state, seats), masks, draws)
        if chosen.keys() != kind.action.heads.keys():
            found.append(f"bot {name}: heads {', '.join(chosen)}, expected {', '.join(kind.action.heads)}")
            continue
        for head, action in chosen.items():
            spec = kind.action.heads[head]
            picks = (spec.picks,) if isinstance(spec, Pointer) and spec.picks > 1 else ()
            if tuple(action.shape) != (len(seats), *picks) or action.dtype != torch.int64:
                expected = (len(seats), *picks)
                found.append(f"bot {name}: {head} is {tuple(action.shape)} {action.dtype}, expected {expected} int64")
            elif head in masks and spec.when is None and not picks:
                inside = (action >= 0) & (action < masks[head].shape[1])
                legal = inside & masks[head].gather(1, torch.where(inside, action, 0).unsqueeze(1)).squeeze(1)
                if not bool((legal | ~game.to_act(state)[:, 0]).all()):
                    found.append(f"bot {name}: {head} is an illegal option")
    return found


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and np.allclose(one, other, atol=1e-6)


def _differ(what: str, one: np.ndarray, other: np.ndarray, step: int) -> str:
    if one.shape != other.shape:
        return f"{what}, step {step}: shape {one.shape}, and {other.shape} of the CPU game"
    first = tuple(np.argwhere(~np.isclose(one, other, atol=1e-6))[0])
    return f"{what}{list(map(int, first))}, step {step}: {one[first]}, and {other[first]} of the CPU game"
