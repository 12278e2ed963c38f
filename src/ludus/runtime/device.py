"""The device runtime: tables, acting and learning of all players on one device, in one process.

An ordinary actor on the CPU plays the evaluation matches while the device computes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ludus.config import ConfigError
from ludus.data.records import Match, ModelId, Result, RunStarted
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.experiment import Experiment
from ludus.games.device.tensor_game import TensorGame, tensor_game_of
from ludus.games.outside_bots import WithBots
from ludus.games.tables import WrappedGame
from ludus.models.network_policy import can_stack
from ludus.models.policy import architecture_digest, find_device, use_threads
from ludus.runtime.assemble import CHECKPOINT, inline_inference, load_learner, new_league, new_trained_player
from ludus.runtime.coordinator import Coordinator, Update
from ludus.runtime.networks import Networks, build_policies
from ludus.runtime.rounds import step_in_turn
from ludus.runtime.settings import configured, require_one_stack
from ludus.runtime.status import ServiceStatus, no_services
from ludus.store.checkpoints import Checkpoint
from ludus.store.run_control import LOOK_EVERY_S, Bottleneck, WorkerStatus
from ludus.store.run_folder import RunFolder
from ludus.workers.actor import Actor, ActorConfig
from ludus.workers.controller import Controller
from ludus.workers.device.engine import Engine
from ludus.workers.device.learner import DeviceLearner
from ludus.workers.device.matches import BlockMatches, plays_uniformly
from ludus.workers.device.rollout import Layout
from ludus.workers.messages import HostedPlayer
from ludus.workers.player_cache import LocalWeights

_EVALUATION_TABLES = 512
_FILLER = 2**62
"""Id of matches that are played only to keep tables busy between evaluations."""


class DeviceWorkers:
    """An engine, the matches at its tables, and an actor that measures."""

    saves_tables = False
    restarts = 0

    def __init__(self, experiment: Experiment, folder: RunFolder) -> None:
        """`experiment`: as the run folder has it, with the changes so far."""
        require_on_device(experiment)
        use_threads(1)
        self._experiment = experiment
        self._folder = folder
        self._checkpoints = folder.checkpoints(CHECKPOINT)
        self._evaluation: EvaluationActor | None = None
        self.learner: DeviceLearner
        self.paused = False

    @property
    def can_save(self) -> bool:
        return not self.learner.is_doubtful

    # --- starting ---

    def start_learner(
        self,
        experiment: Experiment,
        players: Mapping[str, HostedPlayer],
        *,
        start: int,
        spent: int,
        checkpoint: Checkpoint | None,
    ) -> None:
        self._playing, self._start = experiment, start
        views = {player: experiment.of_role(described.role) for player, described in players.items()}
        self.learner = DeviceLearner(
            name="learner",
            players={name: new_trained_player(views[name], name, one) for name, one in players.items()},
            buffers={},
            pools=(),
            weights=LocalWeights(),
            models=experiment.models.open(self._folder),
            budget=experiment.budget,
            configured=lambda player, settings: configured(views[player], settings),
            spent=spent,
        )
        load_learner(self.learner, players, checkpoint)

    def wait_for_learner(self, stopped: Callable[[], bool]) -> None:
        """It has loaded its checkpoint already."""

    def can_replace(self, player: str) -> bool:
        return False

    def replace_learner(self, player: str, hosted: HostedPlayer, resume: Callable[[], None]) -> None:
        """It lives and dies with this process."""

    def start_actors(self, controller: Controller, experiment: Experiment, tables: Checkpoint | None) -> None:
        played, game = self._playing, tensor_game(self._playing)
        self._controller = controller
        learner, actor = self.learner, played.actor
        layout = layout_of(played, len(learner.players))
        # Other chances after a resume: the tables begin again.
        seed = played.seed + 1_000_003 * self._start
        players = list(learner.players.values())
        learner.engine = Engine(game, layout, players, played.device, seed=seed, openings=played.openings)
        learner.config = played.device
        bots = played.grouped_game.bots()
        self._matches = BlockMatches(learner.engine, controller, bots=bots, models_in_memory=actor.models_in_memory)
        self._evaluation = EvaluationActor(played, controller)
        learner.turn_over, learner.meanwhile = self._matches.turn_over, self._evaluation.measure

    # --- running ---

    def run_round(self, finished: Callable[[], bool], *, training: bool) -> Sequence[Update]:
        if self.paused:
            time.sleep(LOOK_EVERY_S)
            return ()
        assert self._evaluation is not None
        if not training:
            self._evaluation.measure()
            return ()
        batches = self.learner.batches
        done = step_in_turn((self._controller, self._matches, self.learner), self._experiment.middleware, finished)
        if self.learner.batches == batches:
            return ()
        return (Update(self.learner.decisions, done[self.learner.name].statistics),)

    def configure(self, experiment: Experiment) -> None:
        """The learner and the controller are told by the editor."""

    def require_room(self, experiment: Experiment) -> None:
        require_on_device(experiment)

    def pause(self, paused: bool) -> None:
        self.paused = paused

    def numbers(self) -> dict[str, float]:
        return {"updates": sum(trained.step for trained in self.learner.players.values())}

    def status(self) -> tuple[Sequence[WorkerStatus], Bottleneck | None]:
        return (), None

    # --- saving and ending ---

    def save(self, num_events: int, chain: str, *, clean: bool, patience_s: float | None) -> None:
        """The tables are not saved: their matches are void, and a resume starts new ones."""
        arrays, facts = self.learner.save()
        saved = {f"learner/{name}": array for name, array in arrays.items()}
        self._checkpoints.save(self.learner.decisions, saved, {"learner": facts, "events": num_events, "chain": chain})

    def can_continue(self, checkpoint: Checkpoint) -> bool:
        return False

    def end(self) -> None:
        if self._evaluation is not None:
            self._evaluation.close()
            self._evaluation = None

    def close(self) -> None:
        self.end()


class EvaluationActor:
    """Plays evaluation matches, of snapshots and bots, with an ordinary actor on the CPU."""

    def __init__(self, experiment: Experiment, controller: Controller) -> None:
        self._controller = controller
        spec = experiment.grouped_game.spec
        networks = Networks(experiment, controller.league.role_of)
        episodes = experiment.evaluation.episodes
        self._tables = max(1, min(_EVALUATION_TABLES, -(-episodes // spec.num_teams)))
        self._latest: Match | None = None
        layouts = [
            TrajectoryLayout(kind=kind, unroll_length=1, state=memory)
            for kind, memory in zip(spec.kinds, networks.memory, strict=True)
        ]
        self._actor = Actor(
            name="evaluation",
            game=experiment.grouped_game.tables(self._tables),
            config=ActorConfig(num_tables=self._tables, matches=1, episodes_per_table=spec.num_teams),
            client=self,
            inference=inline_inference(
                experiment, LocalWeights(), controller, networks, bots=experiment.grouped_game.bots()
            ),
            pools=tuple(SlotPool(layout, 1) for layout in layouts),
            trajectories=self,
            hand_over_after=None,
            seed=experiment.seed,
        )

    def measure(self) -> bool:
        """One step of play, if a match is due or open; says whether it was."""
        if not self._controller.is_measuring:
            return False
        self._actor.step()
        return True

    def close(self) -> None:
        self._actor.close()

    # --- the client of the actor ---

    def next_match(self, tables: int) -> Match:
        """The next match that is due. If none is, tables that are done go on with the latest one unrecorded."""
        match = self._controller.next_evaluation(tables)
        if match is not None:
            self._latest = match
            return match
        assert self._latest is not None
        sides, teams = self._latest.sides, len(self._latest.sides)
        return Match(id=_FILLER, purpose="evaluation", sides=sides, tables=tables, episodes_per_table=teams)

    def report(self, result: Result) -> None:
        if result.match_id != _FILLER:
            self._controller.report(result)

    def void_match(self, match_id: int, reason: str) -> None:
        if match_id != _FILLER:
            self._controller.void_match(match_id, reason)

    def put(self, player: str, kind: int, slots: object) -> None:
        """No player trains in a match that measures."""

    def complete(self, player: str) -> None:
        """No player trains in a match that measures."""


def layout_of(experiment: Experiment, num_players: int) -> Layout:
    """The tables of a training with so many learning players."""
    actor = experiment.actor
    batch = experiment.of_role(next(iter(experiment.league.roles))).learner.batch_size
    return Layout.fit(
        tensor_game(experiment),
        learners=num_players,
        num_tables=actor.num_tables,
        matches=actor.matches,
        batch_size=batch,
        unroll_length=actor.unroll_length if trains_on_sequences(experiment) else None,
    )


def trains_on_sequences(experiment: Experiment) -> bool:
    """Whether players train on sequences of decisions, because of their algorithm or of memory."""
    return any(_needs_sequences(experiment.of_role(name)) for name in experiment.league.roles)


def _needs_sequences(view: Experiment) -> bool:
    [policy] = build_policies(view, view.seed)
    return view.algorithm.needs_sequences or bool(policy.state_arrays)


# --- what this runtime cannot do ---


def tensor_game(experiment: Experiment) -> TensorGame:
    """The game of the experiment as tensors; a ConfigError if it cannot be played so."""
    for setting, is_asked in (("policies", experiment.policies != "shared"), ("isolation", experiment.isolation)):
        if is_asked:
            raise ConfigError(f"{setting} is not for the device runtime; {_ELSEWHERE}")
    source = experiment.grouped_game
    while isinstance(source, WithBots):
        source = source.game
    if isinstance(source, WrappedGame) and not hasattr(source, "TENSOR_TWIN"):
        raise ConfigError(f"game: the device runtime plays no {type(source).__name__}; {_ELSEWHERE}")
    try:
        game = tensor_game_of(source)
    except ValueError as error:
        raise ConfigError(f"game: {error}") from None
    if game is None:
        raise ConfigError(
            f"game: {experiment.game.spec.name} has no tensor game (a class that TENSOR_TWIN names: docs/gpu.md); "
            f"{_ELSEWHERE}"
        )
    return game


_ELSEWHERE = "use --runtime local"


def require_on_device(experiment: Experiment) -> None:
    """Refuse, by its name, what an experiment asks for and the device runtime cannot do."""
    game = tensor_game(experiment)
    if game.spec.compares_roles:
        raise ConfigError(f"game: {game.spec.name} compares players by role, the device runtime does not")
    learner, actor, league = experiment.learner, experiment.actor, experiment.league
    asked = {
        "actors": experiment.actors is not None,
        "frozen_models": bool(experiment.frozen_models),
        "actor.inference=worker": actor.inference == "worker",
        f"learner.ranks={learner.ranks}": learner.ranks > 1,
        "learner.placement=per_player": learner.placement == "per_player",
        "learner.recompute": bool(learner.recompute),
        "learner.buffer_worker": learner.buffer_worker,
        "league.capacity": league.capacity is not None,
        "league.external with a search": bool(league.searching),
    }
    for name, role in league.roles.items():
        place = f"league.roles.{name}"
        asked |= {f"{place}.line_up": bool(role.line_up), f"{place}.trains=everyone": role.trains == "everyone"}
        algorithm, own = experiment.of_role(name).algorithm, role.algorithm is not None
        whose = f"{place}.algorithm" if own else "algorithm"
        kind = f"{whose}={type(algorithm).__name__}"
        asked[kind] = not algorithm.stackable
    for setting, is_asked in asked.items():
        if is_asked:
            raise ConfigError(f"{setting} is not for the device runtime; {_ELSEWHERE}")
    try:
        game.require_device(find_device(learner.device))
    except ValueError as error:
        raise ConfigError(f"game: {error}") from None
    _require_one_network(experiment)
    _require_one_search(experiment)
    require_one_stack({name: experiment.of_role(name).learner for name in league.roles})
    try:
        layout_of(experiment, sum(role.count for role in league.roles.values()))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    _require_bots(experiment, game)


def _require_one_network(experiment: Experiment) -> None:
    """All players have one network, which stacks, and all train on single decisions or all on sequences."""
    digests = {}
    for name in experiment.league.roles:
        view = experiment.of_role(name)
        [policy] = build_policies(view, view.seed)
        place = "model" if experiment.league.roles[name].model is None else f"league.roles.{name}.model"
        if not can_stack(policy):
            raise ConfigError(f"{place}: {type(policy).__name__} cannot be stacked; {_ELSEWHERE}")
        if policy.value_scale is not None:
            raise ConfigError(f"{place}.value_normalisation is not for the device runtime yet; {_ELSEWHERE}")
        digests[architecture_digest(policy)] = place
    if len(digests) > 1:
        raise ConfigError(
            f"{' and '.join(digests.values())} differ: the device runtime has one network for all players"
        )
    whole = {name: _needs_sequences(experiment.of_role(name)) for name in experiment.league.roles}
    if len(set(whole.values())) > 1:
        one, other = (next(name for name, needs in whole.items() if needs is wanted) for wanted in (True, False))
        raise ConfigError(
            f"league.roles.{one}.algorithm needs sequences and league.roles.{other}.algorithm does not: in the device "
            f"runtime all players train on the one or the other; {_ELSEWHERE}"
        )


def _require_one_search(experiment: Experiment) -> None:
    """All players search before each decision in the same way, or none does. The experiment has checked that the game
    can be searched."""
    searches = {name: experiment.of_role(name).algorithm.search for name in experiment.league.roles}
    name, search = next(iter(searches.items()))
    for other, its_own in searches.items():
        if its_own != search:
            raise ConfigError(
                f"league.roles.{name}.algorithm and league.roles.{other}.algorithm search in different ways: in the "
                f"device runtime all players search alike; {_ELSEWHERE}"
            )


def _require_bots(experiment: Experiment, game: TensorGame) -> None:
    """Each role may draw `random` and the bots of the tensor game as its opponents in training, and no others: they
    play on the CPU."""
    on_device = game.tensor_bots()
    able = () if on_device is None else on_device.names
    rules = experiment.league
    known = replace(  # the models that players start from may still be addresses, and do not matter here
        rules,
        roles={name: replace(role, start=None) for name, role in rules.roles.items()},
        external={name: str(ModelId(name, 0, 0)) for name in rules.external},
    )
    league = new_league(replace(experiment, league=known))
    league.apply(RunStarted(0))
    for event in league.initial_events():
        league.apply(event)
    others = experiment.grouped_game.bots().items()
    bots = [name for name, bot in others if name not in able and not plays_uniformly(bot)]
    for player in league.standings if league.num_teams > 1 else ():
        chosen = [name for name, share in league.opponent_law(player).items() if share > 0 and name in bots]
        if chosen:
            place = f"league.roles.{league.role_of(player)}.matchmaking"
            raise ConfigError(
                f"{place} may choose the bot {chosen[0]!r}, which plays on the CPU: set include_scripted=false there, "
                f"or {_ELSEWHERE}"
            )


def device_training(
    experiment: Experiment, folder: RunFolder, *, service_status: ServiceStatus = no_services
) -> Coordinator[DeviceWorkers]:
    """A training on one device, in this process."""
    return Coordinator(experiment, folder, lambda now, _: DeviceWorkers(now, folder), service_status=service_status)


def device_plan(experiment: Experiment) -> str:
    """Where and how much is played and trained at a time, in one line."""
    layout = layout_of(experiment, sum(role.count for role in experiment.league.roles.values()))
    device = find_device(experiment.learner.device)
    blocks = f"{layout.num_blocks} matches on {layout.tables} tables each"
    compiling = "; it compiles for some minutes first (device.compile=false: at once, but slower)"
    return f"all on {device}: {blocks}, {layout.steps} steps and one update of every player at a time" + (
        compiling if device.type == "cuda" and experiment.device.compile else ""
    )
