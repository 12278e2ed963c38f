"""One learning player inside a learner: its live weights, their average, the optimiser, the counters."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ludus.algorithms.algorithm import Algorithm, Loss
from ludus.data.batch import Batch
from ludus.data.records import ModelId
from ludus.data.schedules import Schedule, at
from ludus.data.trees import Array, Tree, under
from ludus.models.average import WeightAverage
from ludus.models.policy import Policy
from ludus.models.weights import join_kinds, load_weights, replace_weights, weights_of


@dataclass(frozen=True, kw_only=True, slots=True)
class LearnerConfig:
    """How batches become updates."""

    batch_size: int = 16384
    """Decisions collected for one update of a player."""
    minibatch_size: int = 4096
    """Decisions in one gradient step."""
    epochs: int = 2
    """Passes over a batch."""
    learning_rate: Schedule = 3e-4
    max_gradient_norm: float = 0.5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-5
    average_decay: float = 0.99
    """Per update, of the averaged weights that are published beside the live ones."""
    buffer_size: int = 65536
    """Decisions that may wait for the learner; the oldest are dropped beyond that."""
    max_lag: int = 0
    """Updates by which the weights that acted may be older than those that learn."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "minibatch_size", "epochs", "buffer_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.buffer_size < self.batch_size:
            raise ValueError(
                f"buffer_size ({self.buffer_size}) must hold a batch: at least batch_size ({self.batch_size})"
            )
        for name in ("adam_beta1", "adam_beta2", "average_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} must be in [0, 1), got {getattr(self, name)}")
        for name in ("adam_epsilon", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")
        for progress in (0.0, 1.0):
            if not 0 <= at(self.learning_rate, progress) < math.inf:
                raise ValueError(f"learning_rate must be finite and at least 0, got {self.learning_rate}")
        if self.max_lag < 0:
            raise ValueError(f"max_lag must be at least 0, got {self.max_lag}")


class TrainedPlayer:
    """Learns from batches. Deterministic given its seed and the batches."""

    def __init__(
        self,
        player: str,
        policies: tuple[Policy, ...],
        algorithm: Algorithm,
        config: LearnerConfig,
        *,
        seed: int,
    ) -> None:
        self.player = player
        self.policies = policies
        self._algorithm = algorithm
        self._config = config
        self._parameters = [parameter for policy in policies for parameter in policy.parameters()]
        self._optimiser = torch.optim.Adam(
            self._parameters,
            lr=at(config.learning_rate, 0.0),
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_epsilon,
            fused=True,
        )
        self._averages = tuple(WeightAverage(policy, decay=config.average_decay) for policy in policies)
        self._references = {
            name: tuple(_frozen_copy(policy) for policy in policies) for name in algorithm.references
        }
        self._rng = np.random.Generator(np.random.PCG64(seed))
        self.incarnation = 0
        self.step = 0
        self.decisions = 0
        self.skipped = 0
        """Gradient steps refused because the loss or the gradient was not finite."""
        self.stale = 0
        """Decisions not trained on because the weights that made them were too old."""
        self.refused = 0
        """Decisions not trained on because their trajectory held a NaN or an infinity."""

    @property
    def model(self) -> ModelId:
        return ModelId(self.player, self.incarnation, self.step)

    @property
    def oldest_version(self) -> int:
        """Decisions made with older weights than this are not trained on."""
        return self.step - self._config.max_lag

    def update(self, batches: Mapping[int, Batch], progress: float) -> dict[str, float]:
        """Train on one batch per kind of seat; `progress` is the share of the run's budget that is spent."""
        prepared: dict[int, Batch] = {}
        for kind, batch in batches.items():
            tensors = replace(batch.map(torch.from_numpy), progress=progress)
            references = {name: copies[kind] for name, copies in self._references.items()}
            with torch.no_grad():
                prepared[kind] = self._algorithm.prepare(self.policies[kind], references, tensors)
        trained_on = sum(int(batch.valid.sum()) for batch in prepared.values())
        learning_rate = at(self._config.learning_rate, progress)
        statistics = self._descend(prepared, learning_rate)
        lag = _mean_lag(batches, self.step)
        self.step += 1
        self.decisions += trained_on
        self._follow()
        return {**statistics, "learning_rate": learning_rate, "lag": lag}

    def _descend(self, prepared: Mapping[int, Batch], learning_rate: float) -> dict[str, float]:
        """Several epochs of minibatch gradient steps."""
        for group in self._optimiser.param_groups:
            group["lr"] = learning_rate
        sums: dict[str, Tensor] = {}
        count = 0
        for minibatch in self._minibatches(prepared):
            losses = [self._algorithm.loss(self.policies[kind], batch) for kind, batch in minibatch.items()]
            if not self._take_step(losses):
                continue
            count += 1
            for loss in losses:
                for name, value in loss.statistics.items():
                    sums[name] = sums.get(name, torch.zeros(())) + value / len(losses)
        return {name: float(value) / max(count, 1) for name, value in sums.items()}

    def _take_step(self, losses: list[Loss]) -> bool:
        total = torch.stack([loss.total for loss in losses]).mean()
        self._optimiser.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        norm = nn.utils.clip_grad_norm_(self._parameters, self._config.max_gradient_norm)
        if not bool(torch.isfinite(norm) & torch.isfinite(total.detach())):
            self.skipped += 1
            return False
        self._optimiser.step()
        return True

    def _minibatches(self, prepared: Mapping[int, Batch]) -> Iterator[dict[int, Batch]]:
        """Shuffled single decisions where the algorithm and the policy allow it, else whole trajectories."""
        whole = self._algorithm.needs_sequences or any(policy.state_arrays for policy in self.policies)
        if not whole:
            prepared = {
                kind: batch.rows(torch.nonzero(batch.valid.reshape(-1)).squeeze(1))
                for kind, batch in prepared.items()
            }
        units = {kind: batch.valid.shape[1 if whole else 0] for kind, batch in prepared.items()}
        decisions = sum(int(batch.valid.sum()) for batch in prepared.values())
        num = max(1, round(decisions / self._config.minibatch_size))
        for _ in range(self._config.epochs):
            cuts = {kind: np.array_split(self._rng.permutation(count), num) for kind, count in units.items()}
            for part in range(num):
                minibatch: dict[int, Batch] = {}
                for kind, batch in prepared.items():
                    index = torch.from_numpy(cuts[kind][part])
                    if len(index):
                        minibatch[kind] = batch.columns(index) if whole else batch.map(_Pick(index))
                if minibatch:
                    yield minibatch

    def _follow(self) -> None:
        """Move the average and the references after the live weights."""
        for average in self._averages:
            average.update()
        for name, rule in self._algorithm.references.items():
            for copied, policy in zip(self._references[name], self.policies, strict=True):
                if rule.copy_every and self.step % rule.copy_every == 0:
                    _move(copied, policy, 1.0)
                elif rule.decay:
                    _move(copied, policy, 1.0 - rule.decay)

    # --- weights ---

    def weights(self) -> Tree:
        """Live weights as KIND/PARAMETER."""
        return join_kinds(self.policies, map(weights_of, self.policies))

    def average_weights(self) -> Tree:
        return join_kinds(self.policies, (average.weights() for average in self._averages))

    def reset(self, weights: Mapping[str, Array], incarnation: int) -> None:
        """Start again from these weights: fresh optimiser, average and references."""
        self.restart_from(weights)
        self.incarnation = incarnation
        self.step += 1 + self._config.max_lag  # what the old weights played is too old from now on

    def restart_from(self, weights: Mapping[str, Array]) -> None:
        load_weights(self.policies, weights)
        self._optimiser.state.clear()
        self._averages = tuple(
            WeightAverage(policy, decay=self._config.average_decay) for policy in self.policies
        )
        for copies in self._references.values():
            for copied, policy in zip(copies, self.policies, strict=True):
                _move(copied, policy, 1.0)

    # --- what survives a stop ---

    def save(self) -> tuple[Tree, dict[str, Any]]:
        arrays: Tree = {f"live.{name}": array for name, array in self.weights().items()}
        for index, average in enumerate(self._averages):
            arrays |= {f"average.{index}.{name}": array for name, array in average.state().items()}
        for name, copies in self._references.items():
            for index, policy in enumerate(copies):
                arrays |= {
                    f"reference.{name}.{index}.{key}": array for key, array in weights_of(policy).items()
                }
        for index, parameter in enumerate(self._parameters):
            for key, value in self._optimiser.state.get(parameter, {}).items():
                arrays[f"optimiser.{index}.{key}"] = value.detach().numpy().copy()
        counters = {name: getattr(self, name) for name in _COUNTERS}
        return arrays, {**counters, "rng": self._rng.bit_generator.state}

    def load(self, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
        self.restart_from(under("live.", arrays))
        for index, average in enumerate(self._averages):
            average.load(under(f"average.{index}.", arrays))
        for name, copies in self._references.items():
            for index, policy in enumerate(copies):
                replace_weights(policy, under(f"reference.{name}.{index}.", arrays))
        for index, parameter in enumerate(self._parameters):
            state = under(f"optimiser.{index}.", arrays)
            if state:
                self._optimiser.state[parameter] = {
                    key: torch.from_numpy(np.array(array)) for key, array in state.items()
                }
        for name in _COUNTERS:
            setattr(self, name, facts[name])
        self._rng.bit_generator.state = facts["rng"]


_COUNTERS = ("incarnation", "step", "decisions", "skipped", "stale", "refused")


class _Pick:
    """Rows by index, leaving the (empty) memory alone."""

    def __init__(self, index: Tensor) -> None:
        self._index = index

    def __call__(self, tensor: Tensor) -> Tensor:
        return tensor[self._index] if len(tensor) else tensor


def _mean_lag(batches: Mapping[int, Batch], version: int) -> float:
    """Mean age, in updates, of the decisions that were trained on."""
    ages = np.concatenate([(version - batch.version)[batch.valid] for batch in batches.values()])
    return float(ages.mean()) if len(ages) else 0.0


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
