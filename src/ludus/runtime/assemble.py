"""All wiring: from an `Experiment` and a run folder to workers that know each other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ludus.config import ConfigError, as_config_error, decode, encode
from ludus.data.checks import unknown
from ludus.data.game_tree import ForgetfulSeatError
from ludus.data.records import Match, ModelId
from ludus.data.search import GumbelSearch, split_search
from ludus.data.trajectory import SlotPool, TrajectoryLayout
from ludus.data.trees import Array, IntArray, Tree, under
from ludus.experiment import Experiment
from ludus.games.game import Bot
from ludus.games.network_search import SearchingBot
from ludus.league.league import League
from ludus.models.policy import (
    NoSuchDeviceError,
    Policy,
    device_of_rank,
    find_device,
    require_no_memory,
    value_parameters,
)
from ludus.observe.league_fold import league_of
from ludus.runtime.edits import EditContext
from ludus.runtime.networks import Networks, build_policies
from ludus.runtime.settings import configured, effective
from ludus.store.checkpoints import Checkpoint
from ludus.store.ledger import Ledger
from ludus.store.model_pool import ModelPool, UnknownModel
from ludus.store.model_storage import ModelCache
from ludus.store.run_folder import GameFacts, MetricsFile, RunFolder, RunFolderError
from ludus.system.network import NoSuchInterfaceError, find_interface
from ludus.workers.actor import Actor
from ludus.workers.buffer import Buffer
from ludus.workers.buffer_worker import Recomputing, recomputed_arrays
from ludus.workers.controller import Controller, LearnerClient
from ludus.workers.evaluator import EvaluationBook, Evaluator
from ludus.workers.exploitability import ExactGame, Probs, SnapshotExploitability
from ludus.workers.inference import Inference, InlineInference
from ludus.workers.learner import Learner
from ludus.workers.messages import HostedPlayer
from ludus.workers.player_cache import (
    FrozenModels,
    PlayerCache,
    Policies,
    SeatedPlayer,
    WeightStore,
    is_model_name,
    resolve_player,
    search_with,
)
from ludus.workers.ranks import ALONE, LOOPBACK, Ranks
from ludus.workers.seat_recorder import StreamNumbers, TrajectoryClient
from ludus.workers.seating import MatchClient
from ludus.workers.trained_player import TrainedPlayer

CHECKPOINT = "run"
"""Name of the checkpoints that hold the whole state of a run."""


def new_league(experiment: Experiment) -> League:
    return league_of(experiment.game.spec, experiment.league, experiment.evaluation, experiment.seed)


def load_experiment(folder: RunFolder) -> Experiment:
    """The experiment that is written in a run folder. Imports the code that it names, unless that came with it."""
    folder.require_own_code()
    experiment = decode(msgspec.json.decode(folder.facts.experiment))
    if not isinstance(experiment, Experiment):
        raise TypeError(f"{folder.path} holds a {type(experiment).__name__}, not an Experiment")
    return experiment


def load_league(folder: RunFolder, experiment: Experiment) -> League:
    """The league of a run: the events of its ledger, folded."""
    league = new_league(experiment)
    with folder.ledger(read_only=True) as ledger:
        ledger.fold(league.apply)
    return league


def load_state(folder: RunFolder) -> tuple[Experiment, League]:
    """The experiment of a run, with the settings that were changed since it began, and its league."""
    written = load_experiment(folder)
    league = load_league(folder, written)
    return effective(written, league), league


def create_run(path: str | Path, experiment: Experiment, command: Sequence[str] | None = None) -> RunFolder:
    """A new run folder for an experiment, with what readers need to know of its game."""
    spec = experiment.game.spec
    game = GameFacts(
        name=spec.name,
        seats_per_team=tuple(len(seats) for seats in spec.seats_of_team),
        zero_sum=spec.zero_sum,
        bots=tuple(experiment.grouped_game.bots()),
        roles=spec.role_names if spec.compares_roles else (),
    )
    return RunFolder.create(path, encode(experiment), seed=experiment.seed, command=command, game=game)


def learning_players(league: League) -> dict[str, HostedPlayer]:
    """The learning players of now, those included that the first start will add."""
    joined = [(player.id, player.model, player.role) for player in league.players.values() if player.learning]
    awaited = [event for event in league.initial_events() if event.role in league.rules.roles]
    joined += [(event.player, event.model, event.role) for event in awaited]
    return {
        player: HostedPlayer(
            number=number, role=role, start=model, value_only=league.rules.roles[role].value_only_at_start
        )
        for number, (player, model, role) in enumerate(joined)
        if player in league.standings or player not in league.players
    }


def slots_per_actor(experiment: Experiment, roles: Iterable[str]) -> tuple[int, ...]:
    """Per kind of seat: a slot that each stream writes into and one that it may need next, those that may
    wait in the buffers, and those of hand-overs that are on the way there while the learner is busy. `roles`: of the
    learning players."""
    streams = StreamNumbers(experiment.grouped_game.spec, experiment.actor.num_tables)
    waiting = 0
    for learner in (experiment.of_role(role).learner for role in roles):
        on_the_way = (learner.lag + (learner.uses > 1)) * _slots_for(experiment, learner.batch_size)
        waiting += _slots_for(experiment, learner.buffer_size) + on_the_way
    return tuple(2 * streams.count(kind) + waiting for kind in range(len(experiment.grouped_game.spec.kinds)))


def _slots_for(experiment: Experiment, decisions: int) -> int:
    """Slots of one actor for so many decisions: twice what full trajectories need, since many are cut short, and one
    for each seat at the tables, since a hand-over cuts them all."""
    full = -(-decisions // experiment.actor.unroll_length)
    return 2 * full + experiment.actor.num_tables * experiment.game.spec.num_seats


def new_pools(
    experiment: Experiment,
    roles: Collection[str],
    num_actors: int = 1,
    new: Callable[[tuple[int, ...], Any], Array] = np.zeros,
    *,
    with_buffer_worker: bool = False,
) -> tuple[SlotPool, ...]:
    """Trajectory slots of all actors, one pool per kind of seat. `roles`: of the learning players."""
    networks = Networks(experiment, lambda _: None)
    length = experiment.actor.unroll_length
    what = experiment.learner.recompute if with_buffer_worker else ()
    return tuple(
        SlotPool(
            TrajectoryLayout(
                kind=policy.kind,
                unroll_length=length,
                state=memory,
                searched=any(experiment.of_role(role).algorithm.search is not None for role in roles),
                recomputed=recomputed_arrays(what, policy, length) if what else {},
            ),
            num_actors * count,
            new,
        )
        for policy, memory, count in zip(
            networks.policies, networks.memory, slots_per_actor(experiment, roles), strict=True
        )
    )


def require_devices(experiment: Experiment) -> None:
    """Refuse an experiment that asks for a GPU that this machine does not have."""
    if experiment.runtime == "ray":
        return  # other machines will have to
    asked = {"learner.device": experiment.learner.device}
    if experiment.actor.inference == "worker":
        asked["actor.inference_device"] = experiment.actor.inference_device
    for setting, device in asked.items():
        try:
            find_device(device, setting)
        except NoSuchDeviceError as error:
            raise ConfigError(str(error)) from None


def require_interface(experiment: Experiment) -> None:
    """Refuse an experiment that names a network interface which this machine does not have."""
    asked = experiment.cluster.network_interface
    if asked is None or experiment.runtime not in ("serial", "local"):
        return  # in a cluster it is one of the learner's node
    try:
        find_interface(asked, LOOPBACK)
    except NoSuchInterfaceError as error:
        raise ConfigError(str(error)) from None


def require_metrics(experiment: Experiment) -> None:
    """Refuse outputs of metrics whose library is missing: hours later would be too late to say so."""
    for output in experiment.metrics:
        output.require()


def require_value_parameters(experiment: Experiment) -> None:
    """Refuse a warm-up of the value alone if a network does not say what its value is."""
    asked = [
        (name, setting)
        for name, role in experiment.league.roles.items()
        for setting, decisions in (
            ("after_reset.value_only_decisions", role.after_reset.value_only_decisions),
            ("value_only_at_start", role.value_only_at_start),
        )
        if decisions
    ]
    for name, setting in asked:
        for policy in build_policies(experiment.of_role(name), experiment.seed):
            if not value_parameters(policy):
                raise ConfigError(
                    f"league.roles.{name}.{setting}: the policy of "
                    f"{policy.kind.name!r} seats has no parameters called 'value' or 'critic', nor any in a "
                    "module of that name, that could be trained alone"
                )


def new_learner(
    experiment: Experiment,
    hosted: Mapping[str, HostedPlayer],
    pools: tuple[SlotPool, ...],
    board: WeightStore,
    models: ModelPool | ModelCache,
    free: Callable[[int, IntArray], None],
    num_actors: int = 1,
    spent: int = 0,
    ranks: Ranks = ALONE,
    recomputing: Callable[[str], Recomputing] | None = None,
    device: int | None = None,
) -> Learner:
    """A learner with fresh weights for every player. `spent`: decisions of players that have left;
    `recomputing`: each player's way to the buffer worker, if there is one; `device`: its number among those that
    share the GPUs."""
    players, buffers = {}, {}
    views = {player: experiment.of_role(described.role) for player, described in hosted.items()}
    for player, described in hosted.items():
        number = ranks.local_rank if device is None else device
        players[player] = new_trained_player(views[player], player, described, number, ranks)
        config = players[player].config
        buffers[player] = Buffer(
            pools,
            max_decisions=config.buffer_size,
            max_slots=_slots_for(experiment, config.buffer_size),
            free=free,
            num_actors=num_actors,
            max_lag=config.lag,
            uses=config.uses,
            recomputing=None if recomputing is None else recomputing(player),
        )
    return Learner(
        name="learner",
        players=players,
        buffers=buffers,
        pools=pools,
        weights=board,
        models=models,
        budget=experiment.budget,
        configured=lambda player, settings: configured(views[player], settings),
        spent=spent,
        ranks=ranks,
    )


def seed_of(experiment: Experiment, hosted: HostedPlayer) -> int:
    """The seed of a learning player's first weights and of its draws."""
    return int(np.random.SeedSequence([experiment.seed, hosted.number]).generate_state(1)[0])


def new_trained_player(
    view: Experiment, player: str, described: HostedPlayer, device: int = 0, ranks: Ranks = ALONE
) -> TrainedPlayer:
    """A learning player with fresh weights. `view`: the experiment of its role; `device`: its number among the learners
    that share the GPUs."""
    config = replace(view.learner, device=device_of_rank(view.learner.device, device))
    seed = seed_of(view, described)
    return TrainedPlayer(player, build_policies(view, seed), view.algorithm, config, seed=seed, ranks=ranks)


def load_learner(learner: Learner, hosted: Mapping[str, HostedPlayer], checkpoint: Checkpoint | None) -> None:
    """Load the players from the checkpoint; those that joined later start with the model that they joined
    with. All continue at least under the incarnation of `hosted`."""
    known = checkpoint.facts["learner"] if checkpoint is not None else {}
    if checkpoint is not None:
        learner.load(under("learner/", checkpoint.arrays), known)
    for player, one in hosted.items():
        if one.start is not None and player not in known:
            learner.start_from(player, ModelId.parse(one.start), one.value_only)
        trained = learner.players[player]
        trained.incarnation = max(trained.incarnation, one.incarnation)


def new_controller(
    experiment: Experiment,
    folder: RunFolder,
    league: League,
    ledger: Ledger,
    learner: LearnerClient,
    on_evaluation: Callable[[Match], None] = lambda match: None,
    evaluations: MetricsFile | None = None,
) -> Controller:
    """A controller for a league that has seen the whole ledger; `experiment`: with all changes so far;
    `on_evaluation`: called after each evaluation match; `evaluations`: their file, where it is held open."""
    return Controller(
        league=league,
        ledger=ledger,
        models=folder.models,
        learner=learner,
        evaluator=Evaluator(experiment.evaluation, league),
        evaluations=EvaluationBook(folder, on_evaluation, evaluations),
        episodes_per_table=experiment.actor.episodes_per_table,
        most_void=experiment.supervision.most_void,
    )


def inline_inference(
    experiment: Experiment,
    weights: WeightStore,
    frozen: FrozenModels,
    networks: Networks,
    *,
    bots: Mapping[str, Bot],
    sharing: int = 1,
) -> InlineInference:
    """Inference with models that this process holds itself, as many as `sharing` actors would keep."""
    players = PlayerCache(
        build=networks.of_model,
        weights=weights,
        frozen=frozen,
        bots=bots,
        capacity=experiment.actor.models_in_memory * sharing,
        searching={
            player: partial(_searching_bot, experiment, simulations)
            for player, simulations in experiment.league.searching.items()
        },
    )
    return InlineInference(players, networks.draws, networks.memory)


def _searching_bot(experiment: Experiment, simulations: int, policies: Policies) -> Bot:
    search = search_with(experiment.grouped_game, GumbelSearch(simulations=simulations), policies)
    return SearchingBot(search, noise=True)


def new_actor(
    experiment: Experiment,
    *,
    name: str,
    client: MatchClient,
    inference: Inference,
    pools: tuple[SlotPool, ...],
    trajectories: TrajectoryClient,
    roles: Mapping[str, str],
    seed: int,
    learner_goes_first: Callable[[], bool] = lambda: True,
    sharing: int = 1,
    slots: Sequence[range] | None = None,
) -> Actor:
    """An actor of a run. `roles`: of the learning players; `sharing`: actors that share a batch; `slots`: the
    trajectory slots that it may use, by kind of seat, None for all."""
    return Actor(
        name=name,
        game=experiment.grouped_game.tables(experiment.actor.num_tables),
        config=experiment.actor,
        client=client,
        inference=inference,
        pools=pools,
        trajectories=trajectories,
        hand_over_after=shares_of_batch(experiment, roles, sharing),
        learner_goes_first=learner_goes_first,
        seed=seed,
        slots=slots,
        openings=experiment.openings,
        searches={
            player: search_with(experiment.grouped_game, search, partial(_inline(inference).policies_of, player))
            for player, role in roles.items()
            if (search := experiment.of_role(role).algorithm.search) is not None
        },
    )


def _inline(inference: Inference) -> InlineInference:
    assert isinstance(inference, InlineInference), "Experiment refuses a search whose networks are elsewhere"
    return inference


def shares_of_batch(experiment: Experiment, roles: Mapping[str, str], sharing: int) -> dict[str, int]:
    """By learning player: decisions that each of `sharing` actors hands over for one batch."""
    return {player: max(1, experiment.of_role(role).learner.batch_size // sharing) for player, role in roles.items()}


def num_learners(experiment: Experiment) -> int:
    """Learner processes at the start of a run, ranks included."""
    if experiment.learner.placement == "together":
        return experiment.learner.ranks
    return sum(role.count for role in experiment.league.roles.values())


def smallest_batch(experiment: Experiment) -> int:
    """Decisions of the smallest batch of any role."""
    return min(experiment.of_role(role).learner.batch_size for role in experiment.league.roles)


def edit_context(written: Experiment, folder: RunFolder) -> EditContext:
    """`written`: the experiment as the run folder has it."""
    return EditContext(written=written, models=folder.models, check=require_value_parameters)


def load_players(
    experiment: Experiment,
    folder: RunFolder,
    league: League,
    names: Iterable[str],
    *,
    weights: Literal["live", "average"] = "live",
    greedy: bool = False,
) -> dict[str, SeatedPlayer]:
    """Players of a run by name: bots of the game, frozen players as they are pinned, learning players as the
    latest checkpoint has them; and models of the pool, as `main@best` or `main:0:12`. With `?search=N` behind it, a
    player searches with N simulations."""
    bots, networks = experiment.grouped_game.bots(), Networks(experiment, league.role_of)
    seated: dict[str, SeatedPlayer] = {}
    for text in names:
        with as_config_error():
            name, simulations = split_search(text)
        if name in bots:
            if simulations is not None:
                raise ConfigError(f"{text}: {name} is a bot; only a player with a network can search with it")
            seated[text] = SeatedPlayer(bot=bots[name])
            continue
        if name not in league.players and not is_model_name(name):
            known = [*league.standings, *league.candidates.frozen(), *bots]
            raise ConfigError(unknown("player", name, known))
        if name in league.standings:
            model, arrays = _learned(experiment.of_role(league.role_of(name)), folder, name, weights)
        else:
            try:
                model, pinned = resolve_player(league, folder.models, name)
                arrays = folder.models.fetch(model, pinned)
            except UnknownModel as error:
                left = f"{name} has left the league: " if league.has_left(name) else ""
                raise ConfigError(f"{left}{error}") from None
        policies = networks.load(model, arrays)
        seated[text] = SeatedPlayer(policies=policies, model=model, greedy=greedy, pinned=True)
        if simulations is not None:
            with as_config_error(before=f"{text}: "):
                seated[text] = _searching(experiment, seated[text], simulations)
    return seated


def _searching(experiment: Experiment, seated: SeatedPlayer, simulations: int) -> SeatedPlayer:
    """The same player, which searches before each decision."""
    for policy in seated.policies:
        require_no_memory(policy)
    search = search_with(experiment.measured_game, GumbelSearch(simulations=simulations), lambda: seated.policies)
    return replace(seated, bot=SearchingBot(search, noise=not seated.greedy), simulations=simulations)


def load_trained(experiment: Experiment, checkpoint: Checkpoint, player: str) -> TrainedPlayer:
    """A learning player as a checkpoint has it, on the CPU whatever device the run was trained on. `experiment`: of
    its role."""
    here = replace(experiment.learner, device="cpu")
    policies = build_policies(experiment, experiment.seed)
    trained = TrainedPlayer(player, policies, experiment.algorithm, here, seed=0)
    trained.load(under(f"learner/{player}/", checkpoint.arrays), checkpoint.facts["learner"][player])
    return trained


def _learned(
    experiment: Experiment, folder: RunFolder, player: str, weights: Literal["live", "average"]
) -> tuple[ModelId, Tree]:
    checkpoint = folder.checkpoints(CHECKPOINT).load_latest()
    if checkpoint is None:
        raise RunFolderError(f"{folder.path} has no checkpoint yet; its snapshots can be named instead")
    if player not in checkpoint.facts["learner"]:
        raise RunFolderError(f"{player!r} has joined since the latest checkpoint of {folder.path}; wait for one")
    trained = load_trained(experiment, checkpoint, player)
    return trained.model, trained.weights() if weights == "live" else trained.average_weights()


def snapshot_exploitability(experiment: Experiment, folder: RunFolder, league: League) -> SnapshotExploitability:
    """For the metrics of a run that trains. Strategies that players follow in training are no part of the tree."""

    def load(model: ModelId) -> Sequence[Policy]:
        return Networks(experiment, league.role_of).load(model, folder.models.fetch(model, "average"))

    return SnapshotExploitability(experiment.game.tree, load, league)


def exact_report(experiment: Experiment, folder: RunFolder, league: League) -> dict[str, float] | None:
    """NashConv of the first learning player's live and averaged weights and of the equilibrium mixture of
    the frozen players, by what it is; None where the game tree cannot be walked, its information states do
    not hold all that a seat has seen, or the policies are not one table of action probabilities."""
    root = experiment.game.tree()
    if root is None:
        return None
    game = ExactGame(root)
    try:
        _ = game.tree
    except ForgetfulSeatError:
        return None
    networks = Networks(experiment, league.role_of)
    if len(networks.policies) > 1 or networks.memory[0]:
        return None

    def table(model: ModelId, weights: Tree) -> Probs:
        return game.probabilities(networks.load(model, weights)[0])

    player = next(iter(league.standings))
    view = experiment.of_role(league.role_of(player))
    report = {
        f"live weights of {player}": game.nash_conv(table(*_learned(view, folder, player, "live"))),
        f"averaged weights of {player}": game.nash_conv(table(*_learned(view, folder, player, "average"))),
    }
    frozen = [league.players[name] for name in league.candidates.frozen()]
    if experiment.game.spec.num_seats == 2 and frozen:
        models = [ModelId.parse(one.model or "") for one in frozen]
        tables = [
            table(model, folder.models.fetch(model, one.weights)) for model, one in zip(models, frozen, strict=True)
        ]
        mixture, weights = game.equilibrium_mixture(tables)
        count = int((weights > 1e-6).sum())
        report[f"equilibrium mixture of the league ({count} of {len(frozen)} frozen players)"] = game.nash_conv(mixture)
    return report
