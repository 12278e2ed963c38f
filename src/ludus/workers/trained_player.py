"""A learning player: live and averaged weights, references, optimiser, counters, and the update on a batch."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ludus.algorithms import losses
from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.cloning import unroll_leniently
from ludus.algorithms.teacher import LOG_RATIO, TEACHER, apply_recomputed, is_recomputed, recomputed_columns
from ludus.data.batch import Batch
from ludus.data.records import ModelId
from ludus.data.schedules import at
from ludus.data.trees import Array, Tree, under
from ludus.models.policy import (
    Policy,
    Unrolled,
    WeightAverage,
    find_device,
    join_kinds,
    load_weights,
    placed,
    replace_weights,
    value_parameters,
    weights_of,
)
from ludus.models.tensors import on_device
from ludus.workers.config import LearnerConfig
from ludus.workers.optimiser import (
    GradientStep,
    OnDevice,
    Optimiser,
    gradient_steps,
    minibatches,
    spread_over,
    total_loss,
)
from ludus.workers.ranks import ALONE, Ranks, Seen, lags, seen_in
from ludus.workers.worker import Diverged

_COUNTERS = ("incarnation", "step", "decisions", "value_only_until", "skipped", "stale", "unused", "refused")
MOST_GROWTH, MOST_GROWTH_IN_ALL = 10.0, 100.0
"""Factors by which the root mean square of all weights may grow: in one update, and in all the training of a player.
In the recipes, an update adds a few per cent to it."""
SMALLEST_START = 0.25
"""The least root mean square that growth is measured from: a network may begin with zeros."""
PROBED_ROWS = 64
"""Decisions of a batch that the network is tried on after an update."""
COMPARED_EVERY = 10
"""Updates between two comparisons of live and averaged weights, and of decisions with each other."""
MOST_LOG_RATIO = 5.0
"""Of the averaged to the live probability of an action, so that one decision does not outweigh all others."""
SAME = 1e-6
"""Relative difference below which two values differ by rounding alone."""


class TrainedPlayer:
    """Learns from batches on its device; inputs and outputs are numpy arrays. Deterministic given seed and batches."""

    def __init__(
        self,
        player: str,
        policies: tuple[Policy, ...],
        algorithm: Algorithm,
        config: LearnerConfig,
        *,
        seed: int,
        ranks: Ranks = ALONE,
    ) -> None:
        self.player = player
        self.ranks = ranks
        self.config = config
        self.device = find_device(config.device)
        self.policies = tuple(placed(policy, self.device) for policy in policies)
        self.algorithm = algorithm
        parameters = [list(policy.parameters()) for policy in policies]
        self.optimiser = Optimiser([one for own in parameters for one in own], config.adam)
        firsts = np.cumsum([0, *map(len, parameters)])
        self._value_parameters = frozenset(
            int(first) + index
            for first, policy in zip(firsts, policies, strict=False)
            for index in value_parameters(policy)
        )
        self._averages = tuple(WeightAverage(policy, decay=config.average_decay) for policy in policies)
        self._references = {name: tuple(_frozen_copy(policy) for policy in policies) for name in algorithm.references}
        self.rng = np.random.Generator(np.random.PCG64(seed))
        self._size = self._first_size = self._size_of_weights()
        """Of the weights: now, and the largest that training has started from."""
        self._distinguishes: dict[int, bool] = {}
        """By kind of seat: whether the network gave different positions different values after its latest update. The
        values in a batch do not say that: they may come from several versions of the weights."""
        self.incarnation = 0
        self.step = 0
        self.decisions = 0
        self.value_only_until = 0
        """`decisions` up to which only the value is trained."""
        self.skipped = 0
        """Gradient steps skipped because the loss or the gradient was not finite."""
        self.stale = 0
        """Decisions not trained on because the weights that made them were too old."""
        self.unused = 0
        """Decisions that the device runtime has not trained on."""
        self.refused = 0
        """Decisions not trained on because their trajectory held a NaN or an infinity."""
        self._average_kl: list[float] = []
        """Of the update under way, by kind of seat, where live and averaged weights were compared."""
        self._constant: list[float] = []
        """Of the update under way, by kind of seat, where decisions were compared: `losses.is_constant`."""
        self.show_life: Callable[[], None] = lambda: None
        """Called during an update, which may take minutes: after each preparation and each gradient step."""

    @property
    def model(self) -> ModelId:
        return ModelId(self.player, self.incarnation, self.step)

    @property
    def oldest_version(self) -> int:
        """Decisions made with older weights than this are not trained on."""
        return self.step - self.config.lag

    def update(
        self, batches: Mapping[int, Batch], progress: float, elsewhere: Mapping[int, Batch] | None = None
    ) -> dict[str, float]:
        """Train on one batch per kind of seat; `progress` is the spent share of the budget. Returns means over the
        gradient steps. `elsewhere`: an empty batch for each kind that only other ranks have; all ranks prepare it."""
        prepared = self.prepare({**batches, **(elsewhere or {})}, progress)
        prepared = {kind: prepared[kind] for kind in batches}
        steps = self._descend(prepared, progress)
        self.require_sound(prepared, steps, progress)
        return self.finish(seen_in(batches), steps, progress)

    def prepare(self, batches: Mapping[int, Batch], progress: float) -> dict[int, Batch]:
        """Move batches to the device and add the columns of the algorithm."""
        prepared = {}
        for kind in sorted(batches):
            prepared[kind] = self._prepare(kind, batches[kind], progress)
            self.show_life()
        return prepared if self.is_whole else {kind: batch.flat() for kind, batch in prepared.items()}

    def require_sound(self, prepared: Mapping[int, Batch], steps: Sequence[GradientStep], progress: float) -> None:
        """Raise `Diverged` if an update has spoilt the weights, before any other worker gets them and before they are
        saved: they are not finite, have exploded, or the network does not see what it is shown any more."""
        if all(step.broken for step in steps):
            return
        rate = self.require_size(self._size_of_weights(), progress)
        for kind, batch in prepared.items():
            probed = self._probed(batch)
            if not len(probed.valid):
                continue
            with torch.no_grad():
                unrolled = unroll_leniently(self.policies[kind], probed)  # a clone is shown illegal actions, too
            if wrong := self._find_wrong_outputs(kind, probed, unrolled):
                raise Diverged(f"an update {rate} has spoilt the network of {self.player}: {wrong}")
            if self.step % COMPARED_EVERY == 0 and self._averages[kind].num_updates >= COMPARED_EVERY:
                self._average_kl.append(self._distance_of_average(kind, probed, unrolled))

    def require_size(self, size: float, progress: float) -> str:
        """Raise `Diverged` if the weights, now of this root mean square, have exploded; returns words for the rate."""
        rate = f"with learning rate {at(self.config.learning_rate, progress):g}"
        before, self._size = self._size, size
        for limit, than, how in (
            (MOST_GROWTH * max(before, SMALLEST_START), before, f"grew in one update {rate}"),
            (MOST_GROWTH_IN_ALL * max(self._first_size, SMALLEST_START), self._first_size, f"have grown {rate}"),
        ):
            if not size <= limit:  # also if it is no number
                raise Diverged(f"the weights of {self.player} {how} from a mean size of {than:.3g} to {size:.3g}")
        return rate

    @torch.no_grad()
    def _distance_of_average(self, kind: int, batch: Batch, live: Unrolled) -> float:
        """KL of the averaged policy from the live one, on probed decisions of a batch."""
        self._averages[kind].copy_to(self._averaged[kind])
        averaged = unroll_leniently(self._averaged[kind], batch)
        log_ratio = (averaged.log_prob - live.log_prob)[batch.valid]
        return float(losses.approximate_kl(log_ratio.clamp(max=MOST_LOG_RATIO)).mean())

    @cached_property
    def _averaged(self) -> tuple[Policy, ...]:
        """Policies for averaged weights."""
        return tuple(_frozen_copy(policy) for policy in self.policies)

    def _find_wrong_outputs(self, kind: int, batch: Batch, unrolled: Unrolled) -> str | None:
        valid = batch.valid
        values = unrolled.value[valid]
        if not (torch.isfinite(values).all() and torch.isfinite(unrolled.log_prob[valid]).all()):
            return "its outputs are not finite"
        if any(_differ(shown[valid]) for shown in batch.observation.values()):
            # Values that differ may come from several versions of a network that distinguishes nothing. And a sound one
            # that distinguished the positions of the last batch may not distinguish those of this one.
            recorded = batch.value is not None and _differ(batch.value[valid])
            before, self._distinguishes[kind] = self._distinguishes.get(kind, recorded), _differ(values)
            if self.step % COMPARED_EVERY == 0:
                self._constant.append(float(losses.is_constant(unrolled, valid)))
            if before and recorded and not self._distinguishes[kind]:
                return f"it gives every position the value {float(values.flatten()[0]):.3g}, which it did not before"
        return None

    def _probed(self, batch: Batch) -> Batch:
        """A few decisions from all over a prepared batch; whole trajectories if it trains on those."""
        if self.is_whole:
            wanted = max(1, PROBED_ROWS // len(batch.valid))
            return batch.columns(_spread(torch.arange(batch.valid.shape[1], device=self.device), wanted))
        return batch.pick(_spread(torch.nonzero(batch.valid).squeeze(1), PROBED_ROWS))

    @torch.no_grad()
    def _size_of_weights(self) -> float:
        """The root mean square of all weights."""
        parameters = self.optimiser.parameters
        norms = torch.stack([torch.linalg.vector_norm(one) for one in parameters])
        return float(torch.linalg.vector_norm(norms)) / math.sqrt(sum(one.numel() for one in parameters))

    def finish(self, seen: Seen, steps: Sequence[GradientStep], progress: float) -> dict[str, float]:
        """Complete an update after its gradient steps: count, and move the average and the references."""
        if self.ranks.count > 1:
            seen = sum(map(Counter, self.ranks.gather(seen)), Counter())
        taken = [step.statistics for step in steps if not step.broken]
        self.skipped += len(steps) - len(taken)
        names = dict.fromkeys(name for statistics in taken for name in statistics)
        statistics: dict[str, float] = {"gradient_steps": len(taken)}
        statistics |= {name: fmean(one[name] for one in taken if name in one) for name in names}
        if self._average_kl:
            statistics["average_kl"] = fmean(self._average_kl)
            self._average_kl = []
        if self._constant:
            statistics["constant_policy"] = max(self._constant)
            self._constant = []
        statistics["learning_rate"] = at(self.config.learning_rate, progress)
        statistics |= lags(seen, self.step, self.config.lag)
        if self.is_value_only:
            statistics["value_only"] = 1.0
        self.decisions += seen.total()
        self.follow()
        return statistics

    @property
    def is_whole(self) -> bool:
        """Whether it trains on whole trajectories, because the algorithm or the policy needs them."""
        return self.algorithm.needs_sequences or any(policy.state_arrays for policy in self.policies)

    @property
    def is_value_only(self) -> bool:
        return self.decisions < self.value_only_until

    @property
    def trainable(self) -> list[bool]:
        """By parameter: whether it is currently trained."""
        only = self._value_parameters
        return [not self.is_value_only or index in only for index in range(len(self.optimiser.parameters))]

    def configure(self, algorithm: Algorithm, config: LearnerConfig) -> None:
        """Change the settings. Weights, optimiser and references stay."""
        if algorithm.references.keys() != self._references.keys():
            raise ValueError(
                f"{type(algorithm).__name__} needs other references ({', '.join(algorithm.references)}) "
                f"than {self.player!r} keeps ({', '.join(self._references)})"
            )
        self.algorithm = algorithm
        self.config = config
        self.optimiser.settings = config.adam
        for average in self._averages:
            average.decay = config.average_decay

    def _prepare(self, kind: int, batch: Batch, progress: float) -> Batch:
        tensors = batch.map(lambda array: on_device(array, self.device))
        over_ranks = self.ranks.sum if self.ranks.count > 1 else None
        tensors = replace(tensors, progress=progress, over_ranks=over_ranks)
        references = self.references_of(kind)
        with torch.no_grad():
            if self.config.recompute:
                tensors = self._recomputed(kind, tensors)
            prepared = self.algorithm.prepare(self.policies[kind], references, tensors)
        extra = {name: column for name, column in prepared.extra.items() if name != LOG_RATIO}
        return replace(prepared, over_ranks=None, extra=extra)

    def _recomputed(self, kind: int, batch: Batch) -> Batch:
        """Recompute columns with the newest weights, unless a buffer worker has done so."""
        what = self.config.recompute
        if not is_recomputed(what, batch):
            teacher = self._references[TEACHER][kind] if TEACHER in what else None
            batch = batch.with_extra(**recomputed_columns(what, self.policies[kind], teacher, batch))
        return apply_recomputed(batch)

    def _descend(self, prepared: Mapping[int, Batch], progress: float) -> list[GradientStep]:
        learning_rate = at(self.config.learning_rate, progress)
        only = self._value_parameters if self.is_value_only else None
        broken: list[Tensor] = []
        measured: list[OnDevice] = []
        spread = spread_over(self.ranks, prepared, whole=self.is_whole) if self.ranks.count > 1 else None
        for epoch in range(self.config.epochs):
            is_last = epoch == self.config.epochs - 1
            size, whole = self.config.minibatch_size, self.is_whole
            for minibatch, weights in minibatches(prepared, spread, whole=whole, size=size, rng=self.rng):
                losses = {kind: self.algorithm.loss(self.policies[kind], part) for kind, part in minibatch.items()}
                total = total_loss(losses, weights)
                broken.append(self.optimiser.step(total, learning_rate, only, self.ranks))
                measured.append(
                    {
                        kind: (weights.get(kind, 1.0), loss.measured() if is_last else loss.statistics)
                        for kind, loss in losses.items()
                    }
                )
                self.show_life()
        return gradient_steps(self.ranks, broken, measured)

    def follow(self) -> None:
        """Complete an update: a new version, towards which the average and the references move."""
        self.step += 1
        for average in self._averages:
            average.update()
        for name, rule in self.algorithm.references.items():
            for copied, policy in zip(self._references[name], self.policies, strict=True):
                if rule.copy_every and self.step % rule.copy_every == 0:
                    _move(copied, policy, 1.0)
                elif rule.decay:
                    _move(copied, policy, 1.0 - rule.decay)

    def references_of(self, kind: int) -> dict[str, Policy]:
        """The reference policies of a kind of seat, by name."""
        return {name: copies[kind] for name, copies in self._references.items()}

    def weights(self) -> Tree:
        """Live weights by KIND/PARAMETER."""
        return join_kinds(self.policies, map(weights_of, self.policies))

    def teacher_weights(self) -> Tree:
        return join_kinds(self.policies, map(weights_of, self._references[TEACHER]))

    def average_weights(self) -> Tree:
        return join_kinds(self.policies, (average.weights() for average in self._averages))

    def reset(self, weights: Mapping[str, Array], incarnation: int, value_only: int = 0) -> None:
        """Restart from these weights, with a fresh optimiser, average and references, except fixed ones."""
        self._restart_from(weights)
        self._train_value_alone(value_only)
        self.incarnation = max(self.incarnation, incarnation)  # a repeated reset has an earlier one
        self.step += 1 + self.config.lag  # trajectories of the old weights are now too old

    def begin_from(self, weights: Mapping[str, Array], value_only: int = 0) -> None:
        """Start with these weights as if the player had been built with them."""
        self._restart_from(weights)
        self._copy_live(fixed=True)
        self._train_value_alone(value_only)

    def _train_value_alone(self, decisions: int) -> None:
        if decisions and not self._value_parameters:
            raise ValueError(
                f"value-only training of {self.player!r}: its policy does not say which of its parameters "
                "only the value depends on (call them, or their module, 'value' or 'critic')"
            )
        self.value_only_until = self.decisions + decisions

    def _restart_from(self, weights: Mapping[str, Array]) -> None:
        load_weights(self.policies, weights)
        self._size = self._size_of_weights()
        self._first_size = max(self._first_size, self._size)
        self._distinguishes.clear()
        self.optimiser.clear()
        self._averages = tuple(WeightAverage(policy, decay=self.config.average_decay) for policy in self.policies)
        self._copy_live(fixed=False)

    def _copy_live(self, *, fixed: bool) -> None:
        """Copy the live weights to the references that are fixed, or to those that are not."""
        for name, rule in self.algorithm.references.items():
            if rule.fixed == fixed:
                for copied, policy in zip(self._references[name], self.policies, strict=True):
                    _move(copied, policy, 1.0)

    def save(self) -> tuple[Tree, dict[str, Any]]:
        arrays: Tree = {f"live.{name}": array for name, array in self.weights().items()}
        for index, average in enumerate(self._averages):
            arrays |= {f"average.{index}.{name}": array for name, array in average.state().items()}
        for name, copies in self._references.items():
            for index, policy in enumerate(copies):
                arrays |= {f"reference.{name}.{index}.{key}": array for key, array in weights_of(policy).items()}
        arrays |= {f"optimiser.{name}": array for name, array in self.optimiser.save().items()}
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return arrays, {**counters, "rng": self.rng.bit_generator.state}

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self.begin_from(under("live.", arrays))
        for index, average in enumerate(self._averages):
            average.load(under(f"average.{index}.", arrays))
        for name, copies in self._references.items():
            for index, policy in enumerate(copies):
                # The checkpoint of a player trained without it, such as a cloned one, lacks the reference.
                if saved := under(f"reference.{name}.{index}.", arrays):
                    replace_weights(policy, saved)
        self.optimiser.load(under("optimiser.", arrays))
        for name in _COUNTERS:
            setattr(self, name, facts.get(name, 0))
        self.rng.bit_generator.state = facts["rng"]


def _spread(index: Tensor, count: int) -> Tensor:
    """At most `count` of these, from all over."""
    return index[:: max(1, len(index) // count)][:count]


def _differ(values: Tensor) -> bool:
    """Whether values differ by more than rounding."""
    values = values.double()
    return len(values) > 1 and bool(((values.amax(0) - values.amin(0)) > SAME * values.abs().amax(0)).any())


def _frozen_copy(policy: Policy) -> Policy:
    copied = copy.deepcopy(policy)
    for parameter in copied.parameters():
        parameter.requires_grad_(False)
    return copied


@torch.no_grad()
def _move(target: Policy, source: Policy, share: float) -> None:
    live = source.state_dict()
    for name, tensor in target.state_dict().items():
        if tensor.is_floating_point():
            tensor.lerp_(live[name], share)
        else:
            tensor.copy_(live[name])
