"""Stacked training: several players of one architecture in one backward pass, as small networks on a GPU need."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ludus.algorithms.algorithm import Algorithm
from ludus.data.batch import Batch
from ludus.data.schedules import at
from ludus.models.network_policy import NetworkPolicy, can_stack, stack_policies
from ludus.models.policy import Unrolled, ValueScale, architecture_digest, uses_convolutions
from ludus.models.tensors import on_device
from ludus.workers.optimiser import GradientStep, StackedOptimiser, draw_orders
from ludus.workers.ranks import seen_in
from ludus.workers.trained_player import TrainedPlayer

MOST_PLAYERS = 16
"""Players in one stack. More are not faster, and the batches of all must fit on the device."""
LEAST_PLAYERS, LEAST_WITH_PLANES = 2, 8
"""Players from which on stacking is faster on a GPU; on a CPU it is not. Measured: docs/many-players.md."""


def update_stacked(
    players: Sequence[TrainedPlayer], batches: Sequence[Mapping[int, Batch]], progress: float
) -> list[dict[str, float]]:
    """`TrainedPlayer.update` of a group at once."""
    prepared = [player.prepare(own, progress) for player, own in zip(players, batches, strict=True)]
    steps = _descend(players, prepared, progress)
    for player, own, taken in zip(players, prepared, steps, strict=True):
        player.require_sound(own, taken, progress)
    trained = zip(players, batches, steps, strict=True)
    return [player.finish(seen_in(own), taken, progress) for player, own, taken in trained]


def groups(players: Sequence[TrainedPlayer]) -> list[list[TrainedPlayer]]:
    """Divide players into groups that are trained together, of one architecture, algorithm and optimiser."""
    if len(players) < 2 or players[0].ranks.count > 1:
        return [[player] for player in players]
    found: list[tuple[object, list[TrainedPlayer]]] = []
    for player in players:
        key = _key(player)
        fitting = (group for other, group in found if key is not None and other == key)
        group = next((group for group in fitting if len(group) < MOST_PLAYERS), None)
        if group is None:
            found.append((key, [player]))
        else:
            group.append(player)
    return [part for _, group in found for part in ([group] if _pays(group) else [[player] for player in group])]


def _key(player: TrainedPlayer) -> object:
    """Equal for players that may be stacked; None for a player that trains alone."""
    config = player.config
    wanted = config.stacked == "on" or (config.stacked == "auto" and player.device.type == "cuda")
    if not (wanted and player.algorithm.stackable and all(map(can_stack, player.policies))):
        return None
    architecture = tuple(map(architecture_digest, player.policies))
    return config.stacked, architecture, player.algorithm, config.adam, config.epochs, str(player.device)


def _pays(group: Sequence[TrainedPlayer]) -> bool:
    if len(group) == 1 or group[0].config.stacked == "on":
        return True
    convolves = any(map(uses_convolutions, group[0].policies))
    return len(group) >= (LEAST_WITH_PLANES if convolves else LEAST_PLAYERS)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pass:
    """The minibatches of one epoch, of all players and one kind of seat."""

    index: Tensor
    """[steps, M, rows]: rows (or whole trajectories) in the joint batch."""
    is_real: Tensor
    """[steps, M, rows]: False for padding up to the longest minibatch."""
    lengths: NDArray[np.int64]
    """[steps, M]: number of real rows."""


def _descend(
    players: Sequence[TrainedPlayer], prepared: Sequence[Mapping[int, Batch]], progress: float
) -> list[list[GradientStep]]:
    first = players[0]
    device, num_models = first.device, len(players)
    kinds = sorted({kind for own in prepared for kind in own})
    policies_by_kind = zip(*(player.policies for player in players), strict=True)
    stacks = {kind: stack_policies(policies) for kind, policies in enumerate(policies_by_kind)}
    kind_of_parameter = [kind for kind, stack in stacks.items() for _ in stack.parameters()]
    optimiser = StackedOptimiser(
        [parameter for stack in stacks.values() for parameter in stack.parameters()],
        [player.optimiser for player in players],
        first.config.adam,
    )
    trainable = torch.tensor([player.trainable for player in players], device=device)
    rates = torch.tensor([at(player.config.learning_rate, progress) for player in players], device=device)
    joint = {kind: _join([own[kind] for own in prepared if kind in own]) for kind in kinds}
    rows = _Rows()
    for epoch in range(first.config.epochs):
        passes = _plan(players, prepared, kinds)
        present = np.zeros((*passes[kinds[0]].lengths.shape, len(stacks)), np.bool_)
        for kind in kinds:
            present[..., kind] = passes[kind].lengths > 0
        on_parameters = on_device(present[..., kind_of_parameter], device)
        on_kinds = on_device(present, device)
        for step in range(len(present)):
            losses, statistics = [], []
            used = [kind for kind in kinds if present[step, :, kind].any()]
            if not used:  # all decisions were too old
                continue
            first.show_life()
            for kind in used:
                part = _minibatch(joint[kind], passes[kind], step, whole=first.is_whole)
                details = epoch == first.config.epochs - 1
                total, measured = _losses(first.algorithm, stacks[kind], part, with_details=details)
                losses.append(total)
                statistics.append(measured)
            counts = on_kinds[step][:, used]
            broken = optimiser.step(_mean(losses, counts), rates, on_parameters[step] & trainable)
            with torch.no_grad():
                means = _means(statistics, counts)
            rows.add(present[step].any(-1), broken, means, _has(statistics, present[step][:, used]))
    optimiser.hand_back()
    return rows.by_player(num_models)


def _plan(
    players: Sequence[TrainedPlayer], prepared: Sequence[Mapping[int, Batch]], kinds: Sequence[int]
) -> dict[int, _Pass]:
    """Draw each player's order as it would alone, and cut all of them into steps."""
    whole, device = players[0].is_whole, players[0].device
    drawn = [
        draw_orders(own, whole=whole, size=player.config.minibatch_size, rng=player.rng)
        for player, own in zip(players, prepared, strict=True)
    ]
    num_steps = max(num for _, num in drawn)
    passes = {}
    for kind in kinds:
        lengths = np.zeros((num_steps, len(players)), np.int64)
        for model, (orders, num) in enumerate(drawn):
            if kind in orders:
                more, rest = divmod(len(orders[kind]), num)
                lengths[:num, model] = more + (np.arange(num) < rest)  # as tensor_split
        longest = int(lengths.max())
        index = torch.zeros((num_steps, len(players), longest), dtype=torch.int64, device=device)
        offset = 0
        for model, (orders, _) in enumerate(drawn):
            if kind not in orders:
                continue
            if len(orders[kind]):
                ends = np.cumsum(lengths[:, model])
                starts = ends - lengths[:, model]
                places = starts[:, None] + np.arange(longest)
                places = np.minimum(places, np.maximum(ends[:, None] - 1, 0))
                index[:, model] = orders[kind][on_device(places, device)] + offset
            valid = prepared[model][kind].valid
            offset += valid.shape[1] if whole else len(valid)
        is_real = on_device(np.arange(longest) < lengths[..., None], device)
        passes[kind] = _Pass(index=index, is_real=is_real, lengths=lengths)
    return passes


def _minibatch(joint: Batch, plan: _Pass, step: int, *, whole: bool) -> Batch:
    """One minibatch of each model, all of the same length, with the model as the first axis."""
    index, is_real = plan.index[step].reshape(-1), plan.is_real[step]
    num_models = len(is_real)
    if whole:
        stacked = joint.columns(index).as_stack(num_models)
        return replace(stacked, valid=stacked.valid & is_real[:, None])
    full = bool((plan.lengths[step] == is_real.shape[1]).all())
    return replace(joint.pick(index, all_valid=full).as_stack(num_models), valid=is_real)


def _losses(
    algorithm: Algorithm, stack: NetworkPolicy, batch: Batch, *, with_details: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss [M] and statistics [M] of each model: a stacked network, and the algorithm's loss mapped over models."""
    unrolled = _tensors(stack.unroll(batch))
    scale = {} if stack.value_scale is None else dict(stack.value_scale.named_buffers())

    def one(columns: Any, unrolled: Any, scale: Any) -> tuple[Tensor, dict[str, Tensor]]:
        policy = OneOfStack(stack, Unrolled(**unrolled), scale)
        loss = algorithm.loss(policy, replace(batch, **columns))  # type: ignore[arg-type]
        return loss.total, dict(loss.measured() if with_details else loss.statistics)

    mapped: Any = torch.vmap(one)
    total, statistics = mapped(_tensors(batch), unrolled, scale)
    return total, statistics


class OneOfStack:
    """One model of an unrolled stack, as a policy for the loss."""

    def __init__(self, stack: NetworkPolicy, unrolled: Unrolled, scale: Mapping[str, Tensor]) -> None:
        self.kind = stack.kind
        self.state_arrays = stack.state_arrays
        self.numbers = stack.numbers
        self.value_scale: ValueScale | None = None
        if stack.value_scale is not None:
            self.value_scale = copy.copy(stack.value_scale)
            self.value_scale._buffers = dict(scale)
        self._unrolled = unrolled

    def unroll(self, batch: Batch) -> Unrolled:
        return self._unrolled


class _Rows:
    """Statistics by step, on the device until the end."""

    def __init__(self) -> None:
        self._present: list[NDArray[np.bool_]] = []
        self._has: list[Mapping[str, NDArray[np.bool_]]] = []
        self._values: list[Tensor] = []

    def add(
        self,
        present: NDArray[np.bool_],
        broken: Tensor,
        means: Mapping[str, Tensor],
        has: Mapping[str, NDArray[np.bool_]],
    ) -> None:
        self._present.append(present)
        self._has.append(has)
        self._values.append(torch.stack([broken.float(), *(mean.float() for mean in means.values())]))

    def by_player(self, num_models: int) -> list[list[GradientStep]]:
        found: list[list[GradientStep]] = [[] for _ in range(num_models)]
        if not self._values:
            return found
        values = torch.cat(self._values).cpu().numpy()
        ends = np.cumsum([len(has) + 1 for has in self._has])
        for present, has, step in zip(self._present, self._has, np.split(values, ends[:-1]), strict=True):
            for model in np.flatnonzero(present).tolist():
                broken, *rest = step[:, model].tolist()
                own = {name: value for name, value in zip(has, rest, strict=True) if has[name][model]}
                found[model].append(GradientStep(bool(broken), own))
        return found


def _means(statistics: Sequence[Mapping[str, Tensor]], counts: Tensor) -> dict[str, Tensor]:
    """The mean of each statistic over the kinds of seat that have it. The names of heads differ between kinds."""
    found = {}
    for name in dict.fromkeys(name for one in statistics for name in one):
        kinds = [kind for kind, one in enumerate(statistics) if name in one]
        found[name] = _mean([statistics[kind][name] for kind in kinds], counts[:, kinds])
    return found


def _has(statistics: Sequence[Mapping[str, Tensor]], counts: NDArray[np.bool_]) -> dict[str, NDArray[np.bool_]]:
    """By statistic: the models that have it, through a batch of a kind of seat with this statistic."""
    names = dict.fromkeys(name for one in statistics for name in one)
    return {name: np.logical_or.reduce(counts[:, [name in one for one in statistics]], -1) for name in names}


def _mean(values: Sequence[Tensor], counts: Tensor) -> Tensor:
    """The mean of values [M] per kind of seat over the kinds that count [M, kinds]."""
    if len(values) == 1:
        return values[0]
    kept = torch.where(counts, torch.stack(list(values), -1), 0.0)
    return kept.sum(-1) / counts.sum(-1).clamp(min=1)


def _join(batches: Sequence[Batch]) -> Batch:
    """Concatenate batches along the axis of single decisions or of trajectories."""
    axis = batches[0].valid.dim() - 1

    def cat(values: Sequence[Any], dim: int) -> Any:
        if isinstance(values[0], dict):
            return {name: cat([value[name] for value in values], dim) for name in values[0]}
        return torch.cat(list(values), dim)

    columns = {
        name: cat([getattr(batch, name) for batch in batches], 0 if name == "state" else axis)
        for name in _tensors(batches[0])
    }
    return replace(batches[0], **columns)


def _tensors(parts: Batch | Unrolled) -> dict[str, Any]:
    """The fields that hold tensors, or trees of them."""
    found = {field.name: getattr(parts, field.name) for field in fields(parts)}
    return {
        name: dict(value) if isinstance(value, Mapping) else value
        for name, value in found.items()
        if isinstance(value, Tensor | Mapping)
    }
