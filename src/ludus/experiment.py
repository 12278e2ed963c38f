"""The typed tree that describes a run. Recipes and users' own files build one; `ludus train` runs it."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, get_args

from ludus.algorithms.algorithm import Algorithm
from ludus.algorithms.ppo import PPO
from ludus.config import ConfigError, override
from ludus.config.annotations import describe, field_hints, live_fields, matches
from ludus.data.checks import did_you_mean, require_in, require_one_of
from ludus.data.schedules import LiveField
from ludus.games.catalog import pointed_at_server
from ludus.games.game import GameSource
from ludus.games.isolation.isolated import Isolated, Isolation, isolate
from ludus.games.network_search import require_searchable
from ludus.games.outside_bots import with_bots
from ludus.games.recording import innermost
from ludus.games.remote.engine import Engine
from ludus.games.seat_groups import SeatPolicies, group_seats
from ludus.games.seat_rows import GameError
from ludus.games.strategies import WithStrategies
from ludus.league.matchmaking import SelfPlay
from ludus.league.players import check_player_id
from ludus.league.population import Population
from ludus.league.promotion import BySteps
from ludus.league.rules import OWN_PARTS, EvaluationConfig, LeagueRules, Role, check_line_up
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import ChecksKind, ModelConfig
from ludus.observe.metrics import MetricsOutput
from ludus.services.registry import check_service_name
from ludus.services.resources import UserService
from ludus.store.model_storage import ModelStorage
from ludus.system.arrays import Compression
from ludus.workers.actor import ActorConfig
from ludus.workers.config import OF_THE_RUN, DeviceConfig, LearnerConfig, Openings, Supervision
from ludus.workers.worker import Middleware


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterConfig:
    """Settings of the nodes and of what travels between them; a run on one machine needs none of them."""

    network_interface: str | None = None
    """Through which the learner's ranks talk to one another; None: the one that routes to the others."""
    ranks_per_node: int | None = None
    """Most ranks of the learner on one node, which gets as many as it has room for; None: one for each GPU or core."""
    most_actors: int | None = None
    """Most actors, those of nodes that join later included; None: twice as many as at the start, and 16 at least."""
    in_flight: int = 2
    """Deliveries of an actor on the way to another node, after which it waits until one has arrived."""
    compress: Compression = "zstd"
    """How trajectories are made smaller on their way between nodes."""
    shared_folder: bool = True
    """Nodes that see the run folder read models from it and write logs into it. False: none of them looks;
    only the learner's node has to see it, and the others read models as `models.backend` says."""
    models_kept: int = 64
    """Frozen models in the cache of a node that does not see the run folder."""
    silent_after_s: float = 20.0
    """A node that has not answered for so long is given up: its matches are void, the others go on."""

    def __post_init__(self) -> None:
        require_in(
            self, "[1, inf]", in_flight=self.in_flight, most_actors=self.most_actors, ranks_per_node=self.ranks_per_node
        )
        require_in(self, "[1, inf]", silent_after_s=self.silent_after_s)
        require_in(self, "[4, inf]", models_kept=self.models_kept)
        require_one_of(self, get_args(Compression), compress=self.compress)


Runtime = Literal["auto", "serial", "local", "ray", "device"]
_DEFAULT = LearnerConfig()


def _main_only() -> LeagueRules:
    main = Role(matchmaking=SelfPlay(), promotion=BySteps(every=1_000_000))
    return LeagueRules(roles={"main": main}, bots=("random",))


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides what a run does."""

    name: str
    """Of what is tried; run folders are called after it."""
    game: GameSource
    """What is played; `ludus games` lists the games that can be named."""
    budget: LiveField[int]
    """Decisions that the learning players train on, all together. Schedules run over it. A run ends with the
    first update that reaches it, so it trains on at least one (`learner.batch_size`)."""
    trial: str | None = None
    """Which of several tries at the same experiment this is: part of the name of the run folder."""
    time_limit_h: LiveField[float] = 72.0
    """Hours that one process trains: then it saves and ends, and --resume goes on."""
    bots: Mapping[str, str] = field(default_factory=dict)
    """Further bots by name (FILE.py:CLASS or program:COMMAND), for `league.bots` and `evaluation.opponents`."""
    isolation: Isolation | None = None
    """Plays the game in processes of its own, within these limits; None: inside the actors."""
    openings: Openings = field(default_factory=Openings)
    """Start positions of training episodes; by default all start at the beginning."""
    policies: SeatPolicies = "shared"
    """Which policy of its player acts for a seat."""
    model: ModelConfig = field(default_factory=ActorCritic)
    """The network of learning players whose role has none of its own."""
    frozen_models: tuple[ModelConfig, ...] = ()
    """Further networks, which frozen players from outside may have (`league.external`)."""
    algorithm: LiveField[Algorithm] = field(default_factory=PPO)
    """How a batch becomes a loss, unless the role of the player has its own way."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    learner: LearnerConfig = field(default_factory=LearnerConfig)
    """Settings of the learner; a role may have its own of what does not belong to the whole run."""
    league: LeagueRules = field(default_factory=_main_only)
    evaluation: LiveField[EvaluationConfig] = field(default_factory=EvaluationConfig)
    middleware: tuple[Middleware, ...] = ()
    """Called around every step of every worker, the first one outermost."""
    services: Mapping[str, UserService] = field(default_factory=dict)
    """Started beside the workers, in processes of their own, by name; `Solver(name)` reaches them."""
    models: ModelStorage = field(default_factory=ModelStorage)
    metrics: tuple[MetricsOutput, ...] = ()
    """Where metrics go besides `metrics/train.jsonl`: TensorBoard(), Prometheus(), WandB(), CSV()."""
    checkpoint_every: LiveField[int] = 1_000_000
    """Decisions between two checkpoints, at most."""
    checkpoint_seconds: LiveField[float] = 30.0
    """Seconds between two checkpoints, at most: so much learning is lost when a learner dies. One that takes more than
    a hundredth of it to write makes the seconds longer, so that checkpoints never cost more than 1 % of the time."""
    actors: LiveField[int | None] = None
    """Actor processes; None: as many as the cores and the batch allow. The serial runtime has none."""
    runtime: Runtime = "auto"
    """Where the workers run: processes of this machine, one repeatable process, nodes of a Ray cluster, or one
    device with the tables on it too. auto: `device` on a GPU if the experiment fits it, else `local`."""
    supervision: Supervision = field(default_factory=Supervision)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    seed: int = 0
    """All chance follows from it; the serial runtime repeats a run exactly."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "game", pointed_at_server(self.game))
        require_in(self, "[1, inf]", budget=self.budget, checkpoint_every=self.checkpoint_every, actors=self.actors)
        require_in(self, "(0, inf)", time_limit_h=self.time_limit_h)
        require_in(self, "(0, inf]", checkpoint_seconds=self.checkpoint_seconds)
        require_one_of(self, get_args(Runtime), runtime=self.runtime)
        if self.actors is not None and self.actors < self.learner.ranks:
            raise ValueError(
                f"actors ({self.actors}) must be at least learner.ranks ({self.learner.ranks}): each rank "
                "learns from actors of its own"
            )
        if self.trial is not None and not re.fullmatch(r"\w[\w.+-]*", self.trial, re.ASCII):
            raise ValueError(f"trial must be letters, digits and . _ + -, got {self.trial!r}")
        if not 0 <= self.seed < 2**63:
            raise ValueError(f"seed must be from 0 to 2**63 - 1, got {self.seed}")
        if isinstance(self.game, type) or not isinstance(self.game, GameSource):
            raise ValueError(
                f"game must be a game such as Kuhn(), or Lifted(YourGame) for a plain Game, got {self.game!r}"
            )
        self._check_training()
        if self.league.searching:
            self._check_search("league.external")
        for name, role in self.league.roles.items():
            self._check_role(f"league.roles.{name}", name, role)
        self._check_tables()
        self._check_patience()
        for name in self.services:
            check_service_name(name)
        outputs = [type(output).__name__ for output in self.metrics]
        if twice := {name for name in outputs if outputs.count(name) > 1}:
            raise ValueError(f"metrics: {', '.join(sorted(twice))} is named more than once")
        self._check_players()

    def _check_tables(self) -> None:
        """Teams must share the episodes of a table, and matches the tables, equally."""
        teams = self.game.spec.num_teams
        if self.actor.episodes_per_table % teams:
            raise ValueError(
                f"actor.episodes_per_table ({self.actor.episodes_per_table}) must be a multiple of the "
                f"{teams} teams of {self.game.spec.name}, so that every side sits on every team equally often"
            )
        if self.actor.num_tables % self.actor.matches:
            raise ValueError(
                f"actor.num_tables ({self.actor.num_tables}) must be a multiple of actor.matches "
                f"({self.actor.matches}), so that every match gets an equal block of tables"
            )

    def _check_players(self) -> None:
        """Names of bots and players must be known, and different."""
        for name in self.bots:
            check_player_id(name)
        bots = self.grouped_game.bots()
        for place, names in (("league.bots", self.league.bots), ("evaluation.opponents", self.evaluation.opponents)):
            for bot in names:
                if bot not in bots:
                    raise ValueError(
                        f"{place}: {self.game.spec.name} has no bot {bot!r}; it has {', '.join(sorted(bots))}"
                    )
        if (exploiters := self.evaluation.exploiters) is not None:
            if self.game.spec.num_teams == 1:
                raise ValueError(
                    f"evaluation.exploiters: {self.game.spec.name} has one team: there is nobody to exploit"
                )
            for named in exploiters.roles:
                if named not in self.league.roles:
                    raise ValueError(
                        f"evaluation.exploiters.roles: the league has no role {named!r}; it has "
                        f"{', '.join(self.league.roles)}"
                    )
        players = [player for name in self.league.roles for player in self.league.players_of(name)]
        for player in (*players, *self.league.external):
            if player in bots:
                raise ValueError(
                    f"league: player {player!r} has the name of a bot of {self.game.spec.name}, which would "
                    "sit in its place; give it another one"
                )
        for name, role in self.league.roles.items():
            self._check_line_up(f"league.roles.{name}", role)
            if role.population is not None:
                self.of_role(name)._check_population(f"league.roles.{name}.population", role.population)

    def _check_training(self) -> None:
        """The model and the algorithm fit the game, and the learner the algorithm."""
        self.algorithm.check(self.grouped_game.spec.kinds)  # the spec says what is wrong with the policies
        if self.algorithm.search is not None:
            self._check_search("algorithm.search")
            if getattr(self.model, "memory", 0):
                raise ValueError("algorithm.search: a network with a memory (model.memory) cannot search")
        if getattr(self.algorithm, "all_actions", False) and not getattr(self.model, "action_values", True):
            raise ValueError(
                "algorithm.all_actions needs a critic that tells action values: set model.action_values=true"
            )
        for one in self.learner.recompute:
            if one not in self.algorithm.recomputable:
                able = ", ".join(self.algorithm.recomputable) or "none"
                raise ValueError(
                    f"learner.recompute: {type(self.algorithm).__name__} as it is set has no use for "
                    f"recomputed {one}; of what can be recomputed it uses: {able}"
                )
        paying = self.game.game if isinstance(self.game, WithStrategies) and not self.game.pays else self.game
        further = sorted({reward for kind in paying.spec.kinds for reward in kind.rewards})
        if further and not self.algorithm.takes_further_rewards:
            raise ValueError(
                f"{self.game.spec.name} has further rewards ({', '.join(further)}), which "
                f"{type(self.algorithm).__name__} ignores; use AlphaStarGradient, or the game without them"
            )
        for model in (self.model, *self.frozen_models):
            if isinstance(model, ChecksKind):
                for kind in self.grouped_game.spec.kinds:
                    model.check(kind)

    def _check_search(self, setting: str) -> None:
        """Actors can search the game with a network of their own."""
        if self.actor.inference != "inline":
            raise ValueError(f"{setting}: players that search need actor.inference=inline, got {self.actor.inference}")
        try:
            require_searchable(self.grouped_game)
        except GameError as error:
            raise ValueError(f"{setting}: {error}") from None

    def _check_role(self, place: str, name: str, role: Role) -> None:
        """What a role has of its own can be trained beside the others."""
        for part, wanted in (("model", ModelConfig), ("algorithm", Algorithm), ("learner", LearnerConfig)):
            own = getattr(role, part)
            if own is not None and not matches(own, wanted):
                raise ValueError(f"{place}.{part} must be a {describe(wanted)} or None, got {own!r}")
        if isinstance(role.learner, LearnerConfig):
            for setting in self._settings_of_run:
                own, run = getattr(role.learner, setting), getattr(self.learner, setting)
                if own not in (run, getattr(_DEFAULT, setting)):
                    raise ValueError(
                        f"{place}.learner.{setting} is {own!r}, but {setting} belongs to the whole run, whose "
                        f"learner.{setting} is {run!r}: leave it out here, or give it the same value"
                    )
        view = self.of_role(name)
        if view is not self:
            try:
                view._check_training()
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None

    def of_role(self, role: str | None) -> Experiment:
        """The experiment with the model, algorithm and learner that players of a role have; None: the experiment."""
        rules = None if role is None else self.league.roles.get(role)
        if rules is None or all(getattr(rules, part) is None for part in OWN_PARTS):
            return self
        views: dict[str | None, Experiment] = self.__dict__.setdefault("_views", {})
        if role not in views:
            view = copy.copy(self)  # it was checked with the whole, and shares the game that was built for it
            for name in OWN_PARTS:
                part = getattr(rules, name)
                if isinstance(part, LearnerConfig):
                    part = replace(part, **{name: getattr(self.learner, name) for name in self._settings_of_run})
                if part is not None:
                    object.__setattr__(view, name, part)
            views[role] = view
        return views[role]

    @property
    def _settings_of_run(self) -> tuple[str, ...]:
        """Settings of the learner that every role has from the experiment."""
        return (*OF_THE_RUN, "recompute") if self.learner.buffer_worker else OF_THE_RUN

    def _check_patience(self) -> None:
        """An actor that waits for its game must not be taken for one that hangs."""
        game, limit = innermost(self.grouped_game), self.supervision.hung_after_s
        if self.runtime == "serial" or not isinstance(game, Isolated | Engine):
            return
        if game.step_seconds + game.start_seconds >= limit:
            place = "isolation" if self.isolation is not None else "game"
            raise ValueError(
                f"{place}.step_seconds ({game.step_seconds:g}) and {place}.start_seconds "
                f"({game.start_seconds:g}) together must be below supervision.hung_after_s ({limit:g}): an "
                "actor that waits for its game shows no sign of life"
            )

    def _check_line_up(self, place: str, role: Role) -> None:
        rules = self.league
        known = [*rules.roles, *(player for name in rules.roles for player in rules.players_of(name))]
        known += [*rules.bots, *self.evaluation.opponents, *rules.external]
        # Snapshots (PLAYER.NUMBER) join while the run trains; the league knows which there are.
        known += [who for who in role.line_up.values() if isinstance(who, str) and "." in who]
        try:
            check_line_up(role.line_up, [len(seats) for seats in self.game.spec.seats_of_team], known)
        except ValueError as error:
            raise ValueError(f"{place}.{error}") from None

    def _check_population(self, place: str, population: Population) -> None:
        """What it searches over must be a setting that each player may have its own value of."""
        if population.fitness == "score" and self.game.spec.num_teams > 1:
            raise ValueError(
                f"{place}.fitness is 'score', which is for games with one team; {self.game.spec.name} has "
                f"{self.game.spec.num_teams}: use 'rating'"
            )
        if population.fitness in ("rating", "win_rate") and self.game.spec.num_teams == 1:
            raise ValueError(
                f"{place}.fitness is {population.fitness!r}, but in {self.game.spec.name} nobody plays "
                "against anybody: use 'score' or 'evaluation'"
            )
        learner: type = type(self.learner)
        live = {"algorithm": frozenset(field_hints(type(self.algorithm))), "learner": live_fields(learner)}
        for space in population.search:
            part, _, setting = space.path.partition(".")
            if setting.partition(".")[0] not in live.get(part, ()):
                known = [f"{name}.{field}" for name, found in live.items() for field in sorted(found)]
                offer = did_you_mean(space.path, known, f"what can: {', '.join(known)}")
                raise ValueError(f"{place}.search: {space.path!r} cannot differ between players{offer}")
            for value in space.examples():
                try:
                    changed = override(getattr(self, part), setting, value)
                except ConfigError as error:
                    raise ValueError(f"{place}.search, in {part}: {error}") from None
                if part == "algorithm" and changed.references.keys() != self.algorithm.references.keys():
                    raise ValueError(
                        f"{place}.search: {space.path}={value} keeps other copies of the weights "
                        f"({', '.join(changed.references) or 'none'}); they must be the same for all players"
                    )

    @property
    def run_name(self) -> str:
        """The name that run folders are called after: NAME, or NAME-TRIAL."""
        return self.name if self.trial is None else f"{self.name}-{self.trial}"

    @cached_property
    def grouped_game(self) -> GameSource:
        """The game as it is played: with bots from outside, and one kind of seat for each policy of a player."""
        game = self.game if self.isolation is None else isolate(self.game, self.isolation)
        return group_seats(with_bots(game, self.bots), self.policies)

    def with_own_bots(self) -> Experiment:
        """The same experiment with bots from outside that nobody else uses: a program, and what a bot remembers of its
        tables, serve one set of tables at a time."""
        return replace(self) if self.bots else self

    @property
    def measured_game(self) -> GameSource:
        """The game in which players are measured outside of training: nobody is told which strategy to follow."""
        return self.without_strategies().grouped_game

    def without_strategies(self) -> Experiment:
        """The same experiment in which nobody is told which strategy to follow (`WithStrategies`)."""
        return replace(self, game=self.game.without()) if isinstance(self.game, WithStrategies) else self
