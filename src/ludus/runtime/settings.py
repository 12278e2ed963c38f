"""Settings that change while a run trains: which may, what a person's text for one means, and the experiment
that follows from all changes so far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ludus.algorithms.algorithm import Algorithm
from ludus.config import ConfigError, apply_encoded, apply_overrides, decode, encode, paths
from ludus.config.annotations import is_component, live_fields
from ludus.config.changes import ADD
from ludus.data.checks import nearest
from ludus.data.records import Settings
from ludus.experiment import Experiment
from ludus.league.league import LEAGUE_PATH, League, later_settings
from ludus.league.rules import OWN_PARTS, Role
from ludus.workers.config import LearnerConfig

OF_ONE_PLAYER = ("learner.", "algorithm.")
"""Prefixes of the settings that a learning player may have its own value of."""
_ROLES = f"{LEAGUE_PATH}roles"


def effective(written: Experiment, league: League) -> Experiment:
    """The experiment of now: as the run folder has it, with all that the ledger says was changed since."""
    return with_settings(with_rules(written, league), league.settings) if league.settings else written


def with_rules(written: Experiment, league: League) -> Experiment:
    """The experiment with the rules of now, live roles included, and otherwise as the run folder has it."""
    if not league.settings:
        return written
    # The league also counts the evaluation's opponents among its bots.
    return replace(written, league=replace(league.rules, bots=written.league.bots))


def own_parts(experiment: Experiment) -> dict[str, dict[str, Any]]:
    """By role, encoded: what it has of its own. For the processes of a run, which know the experiment as its folder
    has it."""
    found = {
        name: {part: encode(own) for part in OWN_PARTS if (own := getattr(role, part)) is not None}
        for name, role in experiment.league.roles.items()
    }
    return {name: own for name, own in found.items() if own}


def with_own_parts(written: Experiment, parts: Mapping[str, Mapping[str, Any]]) -> Experiment:
    """The experiment with what `own_parts` has told, also of roles that the run folder does not know."""
    roles = dict(written.league.roles)
    for name, own in parts.items():
        roles[name] = replace(roles.get(name, Role()), **{part: decode(value) for part, value in own.items()})
    return replace(written, league=replace(written.league, roles=roles)) if parts else written


def with_settings(experiment: Experiment, settings: Settings) -> Experiment:
    """The experiment with these values. Rules of the league are left out: its fold has them."""
    own = {path: value for path, value in settings.items() if not path.startswith(LEAGUE_PATH)}
    return apply_encoded(experiment, own)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Trainer:
    """The part of an experiment that a learning player trains with."""

    algorithm: Algorithm
    learner: LearnerConfig
    budget: int


def configured(experiment: Experiment, settings: Settings) -> tuple[Algorithm, LearnerConfig, int]:
    """The algorithm, learner and budget of a player with these settings changed."""
    before = _Trainer(algorithm=experiment.algorithm, learner=experiment.learner, budget=experiment.budget)
    parts = ("algorithm", "learner", "budget")
    changed = apply_encoded(
        before, {path: value for path, value in settings.items() if path.partition(".")[0] in parts}
    )
    return changed.algorithm, changed.learner, changed.budget


def require_trainable(written: Experiment, league: League) -> None:
    """Refuse settings with which a learning player could not go on: those of all with its own ones on top,
    also once it has taken over what its population searches for."""
    now = with_rules(written, league)
    stacked: dict[str, LearnerConfig] = {}
    for player, standing in league.standings.items():
        view = now.of_role(standing.player.role)
        settings = league.settings_of(player)
        population = league.rules.roles[standing.player.role].population
        searched = population.search if population is not None else ()
        tried = [{space.path: value} for space in searched for value in space.examples()]
        for taken_over in ({}, *tried):
            try:
                algorithm, learner, _ = configured(view, later_settings(settings, taken_over))
            except ConfigError as error:
                own = ", ".join(league.own_settings(player)) or "nothing"
                raise ConfigError(
                    f"{player} could not go on: {error} (of its own it has {own}: --player {player})"
                ) from None
            _require_same_play(written.of_role(standing.player.role).algorithm, algorithm)
            stacked[f"{player} with {taken_over}" if taken_over else player] = learner
    if written.runtime == "device":
        require_one_stack(stacked)


OF_STACK = ("batch_size", "minibatch_size", "epochs", "max_gradient_norm", "adam_beta1", "adam_beta2", "adam_epsilon")
"""Settings of the learner that players trained in one stack share."""


def require_one_stack(learners: Mapping[str, LearnerConfig]) -> None:
    """Refuse learning players, by name, that the device runtime cannot train together."""
    if not learners:
        return
    (first, shared), *others = learners.items()
    for name, learner in others:
        for setting in OF_STACK:
            own, wanted = getattr(learner, setting), getattr(shared, setting)
            if own != wanted:
                raise ConfigError(
                    f"learner.{setting} is {own} of {name} and {wanted} of {first}: the device runtime trains all "
                    "players in one stack with the same value"
                )


def checked_settings(now: Experiment, texts: Mapping[str, str], player: str | None = None) -> Settings:
    """Convert typed settings to values for the ledger; an error names a setting that cannot change live."""
    for path in texts:
        _require_live(now, path, player)
    after = apply_overrides(now, texts)
    for name, role in now.league.roles.items():
        if (role.algorithm is None) != (after.league.roles[name].algorithm is None):
            raise ConfigError(
                f"{_ROLES}.{name}.algorithm: whether a role has an algorithm of its own cannot change while a run "
                "trains; stop the run and change it with `ludus train --resume --set`"
            )
    for one in (None, *now.league.roles):
        _require_same_play(now.of_role(one).algorithm, after.of_role(one).algorithm)
    return {path: encode(_value_at(after, path)) for path in texts}


def is_live(experiment: Experiment, path: str) -> bool:
    """Whether the setting at `path` may change while a run trains: its field is marked, or one above it."""
    above, _, last = path.rpartition(".")
    if above == _ROLES and last.startswith(ADD) and last.removeprefix(ADD) not in experiment.league.roles:
        return True  # a new role changes nothing about the players of now
    node: Any = experiment
    for step in path.split("."):
        cls: type = type(node)
        if is_component(node) and step in live_fields(cls):
            return True
        try:
            node = _part(node, step)
        except (AttributeError, LookupError, ValueError):
            return False
    return False


def _require_live(now: Experiment, path: str, player: str | None) -> None:
    if player is not None and not path.startswith(OF_ONE_PLAYER):
        raise ConfigError(f"{path} cannot differ between players; what can begins with {' or '.join(OF_ONE_PLAYER)}")
    if is_live(now, path):
        return
    if path.startswith(f"{_ROLES}.{ADD}"):
        role = path.removeprefix(f"{_ROLES}.{ADD}").partition(".")[0]
        if role in now.league.roles:
            raise ConfigError(f"{path}: there is a role {role!r}; name its settings, as in {_ROLES}.{role}.promotion")
    live = [setting.path for setting in paths(now) if setting.live]
    if path not in {setting.path for setting in paths(now)}:
        apply_overrides(now, {path: ""})  # says what it may have meant
    above = path
    near: list[str] = []
    while not near and above:
        above = above.rpartition(".")[0]
        near = [one for one in live if one.startswith(f"{above}.") and one.count(".") == above.count(".") + 1]
    close = nearest(path, live)
    raise ConfigError(
        f"{path} cannot change while a run trains; "
        + (f"live is {', '.join(near)}; " if near else f"did you mean {close!r}? " if close else "")
        + "stop the run and change it with `ludus train --resume --set`"
    )


def _require_same_play(before: Algorithm, after: Algorithm) -> None:
    if after.references.keys() != before.references.keys():
        raise ConfigError(
            f"algorithm: {type(after).__name__} as changed keeps other copies of the weights "
            f"({_listed(after.references)}) than the players have ({_listed(before.references)}); "
            "start another run for that"
        )
    if after.search != before.search:
        raise ConfigError(
            f"algorithm.search: actors search as the run began, with {before.search}; start another run for that"
        )


def _value_at(root: Any, path: str) -> Any:
    node = root
    for step in path.split("."):
        node = _part(node, step.removeprefix(ADD))
    return node


def _part(node: Any, step: str) -> Any:
    if isinstance(node, Mapping):
        return {str(key): item for key, item in node.items()}[step]
    return node[int(step)] if isinstance(node, tuple) else getattr(node, step)


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(names) or "none"
