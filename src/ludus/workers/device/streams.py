"""From what was played to trajectories of each side at each table: what every decision earned up to the next one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ludus.workers.device.played import Played
from ludus.workers.device.rollout import Layout


class Streams(NamedTuple):
    """Trajectories, one for each side of each table: columns [turns + 1, phases, rows of a step]. A turn is
    `layout.phases` steps. The fields are those of `Batch`."""

    reward: Tensor
    rewards: Tensor | None
    over: Tensor
    elapsed: Tensor
    valid: Tensor
    follows: Tensor
    idle: Tensor
    value: Tensor


def trajectories(layout: Layout, sides: Tensor, trained: Tensor, played: Played) -> Streams:
    """What each side earned by each of its decisions, up to its next one. `sides`, `trained` [phases, rows]: the side
    of a row, and whether it trains.

    A decision is trained on if the value of the side's next one is known, or the episode ended: of the side that waits
    for the other at the end of an iteration the last decision is only a bootstrap (docs/decisions/0008). So is the last
    decision of each side in a truncated episode, because the value of what comes after it would cost a network call.
    """
    turns = layout.turns
    shape = (turns, layout.phases, layout.num_rows)
    acted, value = played.acted[:-1].view(shape), played.value[:-1].view(shape)
    reward, over, time, truncated = _windows(layout, sides, played, shape)
    last = torch.arange(layout.phases, device=value.device).unsqueeze(1) == 0  # phase 0 decides next
    known = played.acted[-1] & last
    following = torch.where(known, played.value[-1], 0.0)
    bootstrap = following
    owed, waited = torch.zeros_like(reward[0]), torch.zeros_like(following)
    ended = torch.zeros_like(known)
    cut = ended
    columns: list[tuple[Tensor, ...]] = []
    for turn in reversed(range(turns)):
        owed = reward[turn] + torch.where(over[turn].unsqueeze(-1), 0.0, owed)
        waited = waited + (1.0 if time is None else time[turn])
        decides = acted[turn]
        if truncated is not None:
            cut = torch.where(over[turn], truncated[turn], cut)
        ended = over[turn] | ended
        complete = decides & (ended | known)
        if truncated is not None:
            complete, cut = complete & ~cut, cut & ~decides
        following = torch.where(decides, value[turn], following)
        took = torch.where(decides, 1.0 if time is None else waited, 0.0)
        columns.append((torch.where(decides.unsqueeze(-1), owed, 0.0), decides & ended, complete, following, took))
        known = known | decides
        owed = torch.where(decides.unsqueeze(-1), 0.0, owed)
        waited = torch.where(decides, 0.0, waited)
        ended = ended & ~decides
    rewards, overs, completes, values, elapsed = (torch.stack(column[::-1]) for column in zip(*columns, strict=True))
    nothing = torch.zeros_like(acted[:1])
    only_bootstrap = torch.cat((acted & ~completes, nothing))
    rewards = torch.cat((rewards, torch.zeros_like(rewards[:1])))
    return Streams(
        reward=rewards[..., 0],
        rewards=rewards[..., 1:] if rewards.shape[-1] > 1 else None,
        over=torch.cat((overs, nothing)),
        elapsed=torch.cat((elapsed, torch.zeros_like(elapsed[:1]))),
        valid=torch.cat((completes & trained, nothing)),
        follows=torch.cat((~only_bootstrap[1:], nothing)),
        idle=torch.cat((~acted, nothing)),
        value=torch.cat((values, bootstrap.unsqueeze(0))),
    )


def _windows(
    layout: Layout, sides: Tensor, played: Played, shape: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """By turn and row: the rewards of its side, whether the episode ended, the time that passed, and whether the
    episode was truncated."""
    if not layout.in_turn:
        by_block = (layout.steps, layout.num_blocks, layout.tables)
        reward = played.reward.view(*by_block, layout.sides, -1).transpose(2, 3)
        over, time, truncated = (
            None if one is None else one.view(*by_block).unsqueeze(2).expand(reward.shape[:-1]).reshape(shape)
            for one in (played.over, played.elapsed, played.truncated)
        )
        assert over is not None
        return reward.reshape(*shape, -1), over, time, truncated
    # Turn `phase` is step `phase` and the one after it, in which the other side moves.
    rewards, overs, times, cuts = [], [], [], []
    for phase in range(2):
        index = sides[phase].view(1, -1, 1, 1).expand(layout.steps, -1, 1, played.reward.shape[-1])
        first, second = _pairs(played.reward.gather(2, index).squeeze(2), phase)
        over, over_after = _pairs(played.over, phase)
        rewards.append(first + torch.where(over.unsqueeze(-1), 0.0, second))
        overs.append(over | over_after)
        if played.elapsed is not None:
            times.append(torch.stack(_pairs(played.elapsed, phase)).sum(0))
        if played.truncated is not None:
            cuts.append(torch.where(over, *_pairs(played.truncated, phase)))
    time, truncated = (torch.stack(columns, 1) if columns else None for columns in (times, cuts))
    return torch.stack(rewards, 1), torch.stack(overs, 1), time, truncated


def _pairs(steps: Tensor, phase: int) -> tuple[Tensor, Tensor]:
    """The steps of a phase and those after them, of which the last is not played yet."""
    first, second = steps[phase::2], steps[phase + 1 :: 2]
    return first, torch.cat((second, torch.zeros_like(first[:1]))) if phase else second


class Sequences(NamedTuple):
    """The decisions of each stream, without the turns in which its side waited, cut into pieces of equal numbers of
    turns: columns [pieces, phases, rows of a step, length + 1]. The last decision of a piece is followed by the next
    one of the stream, for its value, as in the trajectories of actors."""

    step: Tensor
    """int64: the step of each row; any for padding."""
    columns: dict[str, Tensor]
    """Those of `Streams` that a batch of sequences has, and `first`."""


def sequences(layout: Layout, streams: Streams, played: Played) -> Sequences:
    """The trajectories of one iteration as sequences."""
    length, device = layout.turns // layout.pieces, streams.valid.device
    phases = torch.arange(layout.phases, device=device).unsqueeze(1)
    acted = torch.cat((~streams.idle[:-1], (played.acted[-1] & (phases == 0)).unsqueeze(0)))
    turn = torch.arange(layout.turns + 1, device=device).view(-1, 1, 1)
    order = torch.where(acted, turn, turn + len(acted)).argsort(0)
    """The turns of the decisions of each stream, in order."""
    before = acted.cumsum(0) - acted.long()
    begin = torch.arange(layout.pieces, device=device) * length
    rank = before[begin].unsqueeze(-1) + torch.arange(length + 1, device=device)  # [pieces, phases, rows, length + 1]
    exists = rank < acted.sum(0).unsqueeze(-1)
    chosen = order.movedim(0, -1).unsqueeze(0).expand(layout.pieces, -1, -1, -1)
    chosen = chosen.gather(3, rank.clamp(max=layout.turns))
    inside = exists & (chosen < (begin + length).view(-1, 1, 1, 1))

    def pick(column: Tensor) -> Tensor:
        """[turns + 1, phases, rows, ...] to [pieces, phases, rows, length + 1, ...]."""
        moved = column.movedim(0, 2).unsqueeze(0)
        index = chosen.view(*chosen.shape, *(1,) * (moved.dim() - 4))
        return moved.expand(layout.pieces, *moved.shape[1:]).gather(3, index.expand(*chosen.shape, *moved.shape[4:]))

    valid = pick(streams.valid) & inside
    value = torch.cat((streams.value[:-1], torch.where(phases == 0, played.value[-1], 0.0).unsqueeze(0)))
    columns = {
        "reward": pick(streams.reward),
        "over": pick(streams.over) & inside,
        "elapsed": pick(streams.elapsed),
        "valid": valid,
        "follows": torch.nn.functional.pad(valid[..., 1:], (0, 1)),
        "value": pick(value),
    }
    if streams.rewards is not None:
        columns["rewards"] = pick(streams.rewards)
    step = (chosen * layout.phases + phases.unsqueeze(-1)).clamp(max=layout.steps)
    if played.first is None:  # nothing reads it without memory
        columns["first"] = torch.zeros_like(valid)
    else:
        columns["first"] = by_step(layout, played.first, step)
    return Sequences(step, columns)


def by_step(layout: Layout, column: Tensor, step: Tensor) -> Tensor:
    """Of a column [steps + 1, rows, ...] the rows of the steps [..., rows, length + 1] of sequences."""
    row = torch.arange(layout.num_rows, device=step.device).unsqueeze(1)
    return column.flatten(0, 1)[step * layout.num_rows + row]
