"""The networks of a run: roles may have their own, and frozen players keep the one that they were trained with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property

from ludus.data.records import ModelId
from ludus.data.specs import ArraySpec
from ludus.data.trees import Array
from ludus.experiment import Experiment
from ludus.models.policy import Policy, joint_memory, load_weights
from ludus.workers.policy_worker import RowLayout


def build_policies(experiment: Experiment, seed: int) -> tuple[Policy, ...]:
    """Fresh policies of the experiment's own model, one per kind of seat. See `Experiment.of_role`."""
    return tuple(
        experiment.model.build(kind, seed + index) for index, kind in enumerate(experiment.grouped_game.spec.kinds)
    )


def with_each_model(experiment: Experiment) -> list[Experiment]:
    """The experiment with each different model as its own: first its own, then those of roles, then those of frozen
    players."""
    views = [experiment, *map(experiment.of_role, experiment.league.roles)]
    views += [replace(experiment, model=model) for model in experiment.frozen_models]
    distinct: list[Experiment] = []
    for view in views:
        if all(view.model != known.model for known in distinct):
            distinct.append(view)
    return distinct


class Networks:
    """Builds the policies of any player of a run."""

    def __init__(
        self,
        experiment: Experiment,
        role_of: Callable[[str], str | None],
        place: Callable[[Policy], Policy] = lambda policy: policy,
    ) -> None:
        """`role_of`: the role of a learning player that is or was in the league, None for any other; `place` puts a
        policy on its device."""
        self._experiment = experiment
        self._role_of = role_of
        self._place = place

    def of_role(self, role: str | None) -> tuple[Policy, ...]:
        """Policies for a learning player of this role; None: of the experiment."""
        view = self._experiment.of_role(role)
        return tuple(map(self._place, build_policies(view, view.seed)))

    def of_player(self, player: str) -> tuple[Policy, ...]:
        return self.of_role(self._role_of(player))

    def of_model(self, model: ModelId, weights: Mapping[str, Array]) -> tuple[Policy, ...]:
        """Policies for a model: those of the role that trained it; of a model from elsewhere, those that its weights
        fit."""
        role = self._role_of(model.player)
        if role is not None or len(self._templates) == 1:
            return self.of_role(role)
        shapes = {name: tuple(array.shape) for name, array in weights.items()}
        fitting = [
            view
            for view, policies in self._templates
            if shapes == {name: spec.shape for name, spec in weight_arrays(policies).items()}
        ]
        if len(fitting) > 1:
            models = " and ".join(str(view.model) for view in fitting)
            raise ValueError(f"{model} comes from outside, and its weights fit several networks of this run: {models}")
        view = fitting[0] if fitting else self._experiment  # loading the weights says what does not fit
        return tuple(map(self._place, build_policies(view, view.seed)))

    def load(self, model: ModelId, weights: Mapping[str, Array]) -> tuple[Policy, ...]:
        """The policies of a model, with its weights."""
        policies = self.of_model(model, weights)
        load_weights(policies, weights)
        return policies

    # --- what all of them have in common ---

    @property
    def policies(self) -> tuple[Policy, ...]:
        """The experiment's own, one per kind of seat: they show the shapes that all networks share."""
        return self._templates[0][1]

    @property
    def draws(self) -> list[int]:
        """By kind of seat: uniform numbers of a row, enough for every network."""
        return [max(policy.num_draws for policy in alike) for alike in self._by_kind()]

    @property
    def memory(self) -> list[dict[str, ArraySpec]]:
        """By kind of seat: columns for the memory of every network."""
        return [joint_memory(policy.state_arrays for policy in alike) for alike in self._by_kind()]

    @property
    def layouts(self) -> list[RowLayout]:
        """By kind of seat: what a row has, whichever network decides on it."""
        kinds = [policy.kind for policy in self.policies]
        return [RowLayout(*one) for one in zip(kinds, self.memory, self.draws, strict=True)]

    def _by_kind(self) -> Iterator[tuple[Policy, ...]]:
        return zip(*(policies for _, policies in self._templates), strict=True)

    @cached_property
    def _templates(self) -> list[tuple[Experiment, tuple[Policy, ...]]]:
        return [(view, build_policies(view, view.seed)) for view in with_each_model(self._experiment)]


def weight_arrays(policies: tuple[Policy, ...]) -> dict[str, ArraySpec]:
    """The arrays of their weights, by name."""
    return {
        f"{policy.kind.name}/{name}": ArraySpec(shape=tuple(tensor.shape), dtype=tensor.numpy().dtype)
        for policy in policies
        for name, tensor in policy.state_dict().items()
    }
