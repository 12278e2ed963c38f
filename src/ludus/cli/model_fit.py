"""Do weights from elsewhere fit the networks of an experiment? If so, into a model pool with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any

from ludus.assemble import build_policies
from ludus.cli.model_sources import Source
from ludus.config import encode
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.league.players import unknown
from ludus.models.weights import join_kinds, weights_of
from ludus.store.files import StoreError
from ludus.store.model_pool import ModelConflict, ModelPool
from ludus.store.tensors import Arrays, architecture_digest, canonical
from ludus.store.weight_map import Matching, WeightMap, match_weights, require_used

_MOST_SHOWN = 12


class MisfitError(StoreError):
    """Weights that do not fill the networks of an experiment."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """Weights of a source beside those that an experiment needs."""

    ours: Arrays
    """All weights of a player, fresh."""
    asked: Arrays
    """Those of them that the source has to fill."""
    live: Matching
    average: Matching | None

    @property
    def unfilled(self) -> list[str]:
        """What is ours and not in the source."""
        return [
            name
            for name in self.ours
            if name not in self.live.arrays or (self.average is not None and name not in self.average.arrays)
        ]

    def filled(self, matching: Matching, base: Arrays | None = None) -> Arrays:
        """Ours, with the values of the source where it has them, else those of `base`, else fresh ones."""
        return self.ours | (base or {}) | matching.arrays


def fresh_weights(experiment: Experiment) -> Arrays:
    """All weights of a player, as KIND/PARAMETER, drawn from the experiment's seed."""
    policies = build_policies(experiment, experiment.seed)
    return canonical(join_kinds(policies, map(weights_of, policies)))


def fit_weights(
    source: Source, experiment: Experiment, names: WeightMap | None = None, *, kind: str | None = None
) -> Fit:
    """Match a source with the networks of an experiment, or with that of one kind of seat."""
    names = names or WeightMap()
    ours = fresh_weights(experiment)
    kinds = list(dict.fromkeys(name.partition("/")[0] for name in ours))
    if kind is not None and kind not in kinds:
        raise MisfitError(unknown("kind of seat", kind, kinds))
    only = kind or (kinds[0] if len(kinds) == 1 else None)
    require_used(names, ours)
    asked = {name: array for name, array in ours.items() if only is None or name.startswith(f"{only}/")}
    prefix = f"{only}/" if only else ""
    return Fit(
        ours=ours,
        asked=asked,
        live=match_weights(asked, source.weights, names, prefix=prefix),
        average=(
            None if source.average is None else match_weights(asked, source.average, names, prefix=prefix)
        ),
    )


def require_fit(fit: Fit, source: Source, experiment: Experiment) -> None:
    """Refuse what is not of exactly the networks here, naming the first differences."""
    for matching in (fit.live, fit.average):
        if matching is not None and (not matching.is_complete or matching.left_over):
            raise MisfitError(
                f"{source.label} does not fit the networks here:\n  "
                + "\n  ".join(differences(matching))
                + "\nother names and parts of a file are for `ludus models import`, with --map and --partial"
            )
    _require_same_settings(source, experiment)


def require_same_networks(pool: ModelPool, model: ModelId, experiment: Experiment) -> None:
    """Refuse a model of the pool that is not of the experiment's networks."""
    ours = fresh_weights(experiment)
    if pool.entry(model).architecture != architecture_digest(ours):
        found = differences(match_weights(ours, pool.fetch(model), WeightMap()))
        raise MisfitError(f"model {model} does not fit the networks here:\n  " + "\n  ".join(found))


def differences(matching: Matching, most: int | None = _MOST_SHOWN) -> list[str]:
    """What did not match, a line each; of many the first."""
    lines = []
    for one in matching.wrong:
        hint = f"; {one.hint}" if one.hint else ""
        lines.append(
            f"other shape: {one.ours} is {one.needed}, {one.theirs} in the file is {one.given}{hint}"
        )
    for ours, theirs in matching.missing.items():
        looked = "" if ours.endswith(theirs) else f" (looked for {theirs})"
        guess, near = matching.guesses.get(ours), matching.nearest.get(ours)
        offer = f"; perhaps {guess.name}" if guess else f"; the nearest name is {near}" if near else ""
        lines.append(f"missing:     {ours}{looked}{offer}")
    lines += [f"left over:   {name} in the file" for name in matching.left_over]
    more = len(lines) - (most or len(lines))
    return [*lines[:most], f"and {more} more"] if more > 0 else lines


def publish_new(
    pool: ModelPool,
    player: str,
    live: Arrays,
    average: Arrays | None,
    facts: Mapping[str, str | int | float],
    parent: ModelId | None = None,
) -> ModelId:
    """Put weights in under the first step that is free or has this very content, and keep them there."""
    for step in count():
        model = ModelId(player, 0, step)
        try:
            pool.publish(model, live, parent=parent, facts=facts)
            if average is not None:
                pool.publish(model, average, parent=parent, variant="average", facts=facts)
        except ModelConflict:
            continue
        break
    pool.pin(model)
    return model


def _require_same_settings(source: Source, experiment: Experiment) -> None:
    """Networks of the same shapes can still compute different things, such as with another activation."""
    if source.networks is None:
        return
    for path, there, here in _unlike(source.networks, encode(experiment)["model"], "model"):
        raise MisfitError(f"{source.label} was trained with {path}={there}, here it is {here}")


def _unlike(there: Any, here: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(there, dict) and isinstance(here, dict):
        for name, value in there.items():
            if name in here:  # a field that one of two versions does not know says nothing
                yield from _unlike(value, here[name], f"{path}.{name}")
    elif there != here:
        yield path, there, here
