"""The models that a run begins with: found before it is made, and in its pool before it starts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from ludus.cli.model_fit import Fit, fit_weights, publish_new, require_fit, require_same_networks
from ludus.cli.model_sources import Source, Wish, fetch_source
from ludus.config import ConfigError
from ludus.data.records import ModelId
from ludus.experiment import Experiment
from ludus.league.players import check_player_id
from ludus.store.files import StoreError
from ludus.store.model_pool import ModelPool
from ludus.store.web import DownloadError


@dataclass(frozen=True, kw_only=True, slots=True)
class _Brought:
    """Weights that an address led to, and the player of the new pool that they belong to."""

    player: str
    source: Source
    fit: Fit


@dataclass(frozen=True, kw_only=True, slots=True)
class InitialModels:
    """An experiment whose league may name models by address, and what is there."""

    experiment: Experiment
    brought: dict[str, _Brought]
    """By address."""

    def put_into(self, pool: ModelPool) -> Experiment:
        """Put the models into the pool; the experiment with their ids in place of the addresses."""
        ids = {
            address: str(publish_new(pool, one.player, one.fit.live.arrays, None, one.source.facts))
            for address, one in self.brought.items()
        }
        for one in self.brought.values():
            one.source.discard()
        return self._with_ids(ids)

    @property
    def planned(self) -> Experiment:
        """The experiment with an id in place of every address, before any is given."""
        return self._with_ids({address: f"{one.player}:0:0" for address, one in self.brought.items()})

    def _with_ids(self, ids: Mapping[str, str]) -> Experiment:
        if not ids:
            return self.experiment
        league = self.experiment.league
        roles = {
            name: replace(role, start=ids.get(role.start, role.start)) if role.start else role
            for name, role in league.roles.items()
        }
        external = {player: ids.get(model, model) for player, model in league.external.items()}
        return replace(self.experiment, league=replace(league, roles=roles, external=external))

    def describe(self) -> str:
        """Where its models come from, a line each."""
        return "".join(
            f"model:      {one.player} from {one.source.label}, {one.source.checked}\n"
            for one in self.brought.values()
        )


def models_named(experiment: Experiment) -> Iterator[tuple[str, str, str]]:
    """(setting, what it says, a name for its pool) of every model that the league names."""
    league = experiment.league
    for player, model in league.external.items():
        yield f"league.external.{player}", model, player
    for name, role in league.roles.items():
        if role.start is not None:
            # No player is called so: those of roles have no dot, and snapshots a number after it.
            yield f"league.roles.{name}.start", role.start, f"{name}.start"


def find_initial_models(
    experiment: Experiment, pool: ModelPool | None, known: Collection[str] = ()
) -> InitialModels:
    """Fetch what the league names by address, and look at what it names by id in the pool, unless it is
    known. Writes nothing; what is wrong is said with the setting that says it."""
    brought: dict[str, _Brought] = {}
    for setting, text, player in models_named(experiment):
        if text in known or text in brought:
            continue
        try:
            model = _as_id(text)
            if model is not None:
                _require_there(pool, model, experiment)
                continue
            source = fetch_source(Wish(address=text))
            fit = fit_weights(source, experiment)
            require_fit(fit, source, experiment)
        except DownloadError:
            raise
        except StoreError as error:
            raise ConfigError(f"{setting}: {error}") from error
        brought[text] = _Brought(player=player, source=source, fit=fit)
    return InitialModels(experiment=experiment, brought=brought)


def _as_id(text: str) -> ModelId | None:
    try:
        model = ModelId.parse(text)
        check_player_id(model.player)
    except ValueError:
        return None
    return model


def _require_there(pool: ModelPool | None, model: ModelId, experiment: Experiment) -> None:
    if pool is None or not pool.folder.is_dir():
        raise StoreError(
            f"no model {model}: a new run has none; name one of another run as RUN#{model}, a file or a URL"
        )
    require_same_networks(pool, model, experiment)
