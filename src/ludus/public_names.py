"""The public names of Ludus: what each name means, and the module that it comes from.

`import ludus` and the side doors `ludus.games`, `ludus.league`, `ludus.models` and `ludus.algorithms` read
this table, and so do files on disk: `run.json` holds the public name of a class, so that a class may move to
another module without breaking a run. A name that is not listed here is private.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple


class PublicName(NamedTuple):
    """The address and the description of a public name."""

    address: str
    """`package.module:Name`; nothing after the colon: the module itself."""
    about: str
    """One line for `help(ludus)`."""


Names = Mapping[str, PublicName]


def _table(text: str) -> Names:
    """A line per name: the name, its module (with `:NAME` where it has another name there), what it is."""
    found = {}
    for line in text.strip().splitlines():
        name, place, about = line.split(maxsplit=2)
        found[name] = PublicName(place if ":" in place else f"{place}:{name}", about)
    return found


_RUNS = _table(
    """
    train ludus.training Train a league and return its Run.
    Run ludus.run A run folder: league, evaluation, exploitability, report.
    load_agent ludus.agent A player of a run as an agent for your own loop.
    Agent ludus.agent Plays any seat of its game from plain observations.
    check_game ludus.games.check Play a game and check every promise of its interface.
    load_experiment ludus.training The experiment of a run, a recipe or a file.
    load_address ludus.data.addresses The object at FILE.py:NAME or PACKAGE.MODULE:NAME.
    apply_overrides ludus.config A copy of an experiment with other settings, by path.
    list_settings ludus.config:paths Every setting of an experiment with its type, value and meaning.
    diff ludus.config The settings in which two experiments differ.
    encode ludus.config An experiment as plain JSON values.
    decode ludus.config The experiment that `encode` was given.
    ConfigError ludus.config A setting that does not exist or does not fit.
    GameError ludus.games.seat_rows A game gave what its interface does not allow.
    StoreError ludus.store.files A run folder, ledger or model that cannot be used.
    replay_document ludus.evaluation.play.replays A replay as the web pages show it.
    new_league ludus.runtime.assemble The league of an experiment before its first event.
    """
)
_EXPERIMENTS = _table(
    """
    Experiment ludus.experiment Everything that decides what a run does.
    ActorConfig ludus.workers.actor How an actor plays and cuts play into trajectories.
    LearnerConfig ludus.workers.config How batches become updates.
    EvaluationConfig ludus.league.rules What every new snapshot is measured against.
    Supervision ludus.workers.config What happens when workers fail.
    ClusterConfig ludus.experiment The nodes of a Ray cluster.
    ModelStorage ludus.store.model_storage Where models are kept besides the run folder.
    Linear ludus.data.schedules A number that changes in a straight line over the budget.
    Exponential ludus.data.schedules A number that changes by a constant factor over the budget.
    Middleware ludus.workers.worker User code around every step of every worker.
    Worker ludus.workers.worker An actor, a learner or a controller, as middleware sees it.
    Progress ludus.workers.worker What one step of a worker got done.
    StopTraining ludus.workers.worker Raised by middleware to end a run in good order.
    LoopbackCluster ludus.runtime.ray.loopback A Ray cluster of several nodes on this machine, for tests.
    """
)
_GAMES = _table(
    """
    Game ludus.games.game Interface of one table in plain Python.
    Turn ludus.games.game What a table shows after `reset` or `step`.
    GameSpec ludus.data.specs The fixed facts of a game: seats, teams, observations, actions.
    SeatKind ludus.data.specs What the seats of one kind see and do.
    ObservationSpec ludus.data.specs The named parts that a seat sees.
    ActionSpec ludus.data.specs The heads of an action, in order.
    Vector ludus.data.specs Part of an observation: a fixed number of scalars.
    Planes ludus.data.specs Part of an observation: channels x height x width.
    Entities ludus.data.specs Part of an observation: a list of things with features.
    Choice ludus.data.specs Head of an action: one of several options.
    Pointer ludus.data.specs Head of an action: rows of an Entities part.
    Point ludus.data.specs Head of an action: a place on a map.
    Lifted ludus.games.lift Many tables of a plain Python game.
    GameBatch ludus.games.game Interface of many tables stepped together.
    GameSource ludus.games.game Interface of what an experiment names as its game.
    Bot ludus.games.game Interface of a scripted player.
    RandomBot ludus.games.bots Takes every legal action with the same probability.
    Isolation ludus.games.isolation.isolated Plays a game in processes of its own, within limits.
    """
)
_MORE_GAMES = _table(
    """
    When ludus.data.specs The condition under which a head of an action counts.
    ArraySpec ludus.data.specs Shape and dtype of one array.
    TableView ludus.games.game The arrays of a GameBatch.
    allocate_actions ludus.games.game Arrays for the actions of all tables.
    Table ludus.games.table One table of any game, with the plain interface of a Game.
    StrategyBot ludus.games.bots A scripted player given by action probabilities.
    Rows ludus.games.bots What the seats that a bot plays see and may do, one row each.
    Tree ludus.data.trees A dict of numpy arrays with the same leading axes.
    IntArray ludus.data.trees A numpy array of 64-bit integers.
    allocate ludus.data.trees Zeroed arrays for a mapping of ArraySpecs.
    TreeState ludus.data.tree Interface of a position in a game tree.
    AlphaBetaBot ludus.games.search Looks a number of plies ahead.
    PerfectBot ludus.games.search Searches a small game to its end.
    UctBot ludus.games.search Monte Carlo tree search.
    HostedBot ludus.games.bots A scripted player that acts where the tables are.
    resolve ludus.games.catalog The game at an address.
    list_games ludus.games.catalog The games that can be named here.
    isolate ludus.games.isolation.isolated A game in processes of its own.
    Isolated ludus.games.isolation.isolated The game at an address, in processes of its own.
    Remote ludus.games.remote.source A game whose tables are on a game server.
    GameClient ludus.games.remote.client A connection to a game server.
    MatchConfig ludus.games.remote.messages The teams of a match on a game server.
    Camp ludus.games.remote.messages One team of a match on a game server.
    BatchSource ludus.games.lift A game from its `GameBatch` class.
    WithBots ludus.games.outside_bots A game with further scripted players.
    WithStrategies ludus.games.strategies A game whose seats are told a strategy to follow.
    SeatGroups ludus.games.seat_groups A game with one kind of seat for each policy.
    policy_of_seat ludus.games.seat_groups Which policy of its player acts for each seat.
    RecordedGame ludus.games.recording A game at tables that record.
    RecordedTables ludus.games.recording Tables that record every episode.
    game_version ludus.games.recording A digest of the code of a game.
    Environment ludus.games.environments The Python environment of a game library.
    SeatPlayer ludus.data.replay The player of a seat in a replay.
    DecodedReplay ludus.data.replay What was taken from one replay.
    Episode ludus.data.replay One seat's part in one recorded game.
    EpisodeFacts ludus.data.replay Facts of an episode without its observations.
    column_specs ludus.data.replay The columns of a dataset.
    Beacon ludus.games.builtin.beacon Built in: one unit walks to beacons.
    Blotto ludus.games.builtin.blotto Built in: Colonel Blotto.
    ConnectFour ludus.games.builtin.connect_four Built in: connect four.
    Goofspiel ludus.games.builtin.goofspiel Built in: goofspiel.
    Hills ludus.games.builtin.hills Built in: two teams of two fight over hills.
    Kuhn ludus.games.builtin.kuhn Built in: Kuhn poker.
    Leduc ludus.games.builtin.leduc Built in: Leduc poker.
    RockPaperScissors ludus.games.builtin.rock_paper_scissors Built in: rock, paper, scissors.
    Siege ludus.games.builtin.siege Built in: an asymmetric game of attacker and defender.
    Skirmish ludus.games.builtin.skirmish Built in: a small real-time strategy game.
    TicTacToe ludus.games.builtin.tic_tac_toe Built in: tic-tac-toe.
    TIC_TAC_TOE_CELLS ludus.games.builtin.tic_tac_toe:CELLS Number of cells of tic-tac-toe.
    TIC_TAC_TOE_LINES ludus.games.builtin.tic_tac_toe:LINES The winning lines of tic-tac-toe.
    SKIRMISH_STRATEGIES ludus.games.builtin.skirmish_bots:STRATEGIES Scripted strategies of Skirmish by name.
    SKIRMISH_HERO_STRATEGIES ludus.games.builtin.skirmish_bots:HERO_STRATEGIES Hero strategies by name.
    SKIRMISH_X ludus.games.builtin.skirmish_view:X The entity feature of Skirmish that holds x.
    SKIRMISH_Y ludus.games.builtin.skirmish_view:Y The entity feature of Skirmish that holds y.
    OpenSpiel ludus.games.adapters.openspiel A game of OpenSpiel.
    PettingZoo ludus.games.adapters.pettingzoo An environment of PettingZoo.
    MultiAtari ludus.games.adapters.pettingzoo_atari An Atari game for several players.
    Gymnasium ludus.games.adapters.gymnasium An environment of Gymnasium.
    OldGym ludus.games.adapters.gymnasium_old An environment of the older gym.
    Atari ludus.games.adapters.atari An Atari game for one player.
    SlimeVolley ludus.games.adapters.slimevolley SlimeVolley.
    PySC2 ludus.games.adapters.pysc2 A map of StarCraft II.
    Computer ludus.games.adapters.pysc2 A computer player of StarCraft II.
    PYSC2_UNIT_X ludus.games.adapters.pysc2:UNIT_X The entity feature of PySC2 that holds x.
    PYSC2_UNIT_Y ludus.games.adapters.pysc2:UNIT_Y The entity feature of PySC2 that holds y.
    MicroRTS ludus.games.adapters.microrts MicroRTS.
    Football ludus.games.adapters.football Google Research Football.
    ViZDoom ludus.games.adapters.vizdoom A scenario of ViZDoom.
    FightingICE ludus.games.adapters.fightingice FightingICE.
    FIGHTINGICE_COMMANDS ludus.games.adapters.fightingice:COMMANDS Its commands by number.
    Gamecore ludus.games.adapters.gamecore A battle of heroes played by a gamecore server.
    Hero ludus.games.adapters.gamecore_client A hero of a gamecore battle.
    CampAddress ludus.games.adapters.gamecore_client Where a gamecore server finds the program of a camp.
    """
)
_LEAGUE = _table(
    """
    LeagueRules ludus.league.rules The settings of a league: roles, bots, payoff.
    Role ludus.league.rules What a number of learning players have in common.
    Matchmaker ludus.league.matchmaking Interface of a rule that chooses opponents.
    SelfPlay ludus.league.matchmaking Opponents: the player's own latest weights.
    PFSP ludus.league.matchmaking Opponents: snapshots by how the player does against them.
    UniformPast ludus.league.matchmaking Opponents: every snapshot alike.
    Mixture ludus.league.matchmaking Opponents: one of several rules at random.
    MetaStrategy ludus.league.psro Opponents: the meta-strategy of all snapshots (PSRO).
    Candidates ludus.league.matchmaking The players that a rule may choose from.
    Payoff ludus.league.payoff Win rates and scores between players, from results.
    BySteps ludus.league.promotion A snapshot every so many decisions.
    ByWinRate ludus.league.promotion A snapshot once opponents are beaten often enough.
    ByScore ludus.league.promotion A snapshot when the mean score has grown.
    Population ludus.league.population Population-based training of a role's settings.
    """
)
_MORE_LEAGUE = _table(
    """
    Live ludus.league.matchmaking Opponents: a learning player of another role as it is now.
    Latest ludus.league.matchmaking Opponents: the newest snapshot.
    FixedLaw ludus.league.matchmaking Opponents: given players with given shares.
    QualityScores ludus.league.quality Opponents: snapshots by their quality scores.
    LiveOrPast ludus.league.matchmaking Opponents: a live rival, or its past while it is too strong.
    Verification ludus.league.matchmaking Opponents: AlphaStar's verification matches.
    ForgottenOrStrong ludus.league.matchmaking Opponents: forgotten snapshots and strong exploiters.
    Law ludus.league.matchmaking Player id to probability.
    uniform ludus.league.matchmaking The same probability for every player.
    Promotion ludus.league.promotion Interface of a rule that says when to take a snapshot.
    Snapshot ludus.league.promotion The answer of a promotion rule: freeze the player now.
    Never ludus.league.promotion No snapshot but the initial one.
    AnyOf ludus.league.promotion A snapshot as soon as one of several rules asks for it.
    Restart ludus.league.promotion Interface of a rule that chooses what a reset player starts from.
    FromStart ludus.league.promotion A reset player starts from what it began with.
    AfterReset ludus.league.promotion What happens to a player after a reset.
    PayoffRules ludus.league.payoff How fast old games fade.
    Selection ludus.league.population Interface of a rule that chooses the donor of a member.
    Truncation ludus.league.population The worst members take over from the best.
    BinaryTournament ludus.league.population A member takes over from one that beats it.
    SearchSpace ludus.league.population Interface of the values that a setting may have.
    Uniform ludus.league.population A number, each alike.
    LogUniform ludus.league.population A number, each order of magnitude alike.
    OneOf ludus.league.population One of several values.
    Player ludus.league.players A member of the league.
    Standing ludus.league.players What is known about one learning player.
    Match ludus.data.records Players on the seats of tables, for a number of episodes.
    Side ludus.data.records The players of one team in a match.
    Result ludus.data.records The result of a match.
    Pair ludus.data.records Wins, draws and losses of one side against another.
    MatchIssued ludus.data.records Ledger event: a match was issued.
    RunStarted ludus.data.records Ledger event: the run was started.
    measure ludus.league.measures Measures of a whole league, with intervals.
    META_SOLVERS ludus.league.psro Solvers of MetaStrategy by name.
    SCRIPTED ludus.league.players The role of scripted players.
    MAIN ludus.league.presets The role of main players in the presets.
    MAIN_EXPLOITER ludus.league.presets The role of main exploiters in the presets.
    presets ludus.league.presets: Leagues that were published, by name.
    """
)
_MODELS = _table(
    """
    ActorCritic ludus.models.network_policy Encoders, trunk, optional memory, heads and a critic.
    FullyConv ludus.models.fully_conv A convolutional network for maps.
    AlphaStar ludus.models.alphastar AlphaStar's network, in several sizes.
    ModulePolicy ludus.models.module_policy A policy from a plain `nn.Module`.
    Policy ludus.models.policy Interface from observations to actions.
    """
)
_MORE_MODELS = _table(
    """
    ModelConfig ludus.models.policy Interface of what an experiment names as its model.
    Acted ludus.models.policy What a policy decided, one row per observation.
    Unrolled ludus.models.policy What a policy says about a batch, with gradient.
    EncoderSizes ludus.models.encoders Sizes of the encoders of planes and entities.
    Scatter ludus.models.alphastar_encoder Puts entities onto the map.
    AlphaStarSizes ludus.models.alphastar_encoder Sizes of AlphaStar's encoders.
    ModelCache ludus.store.model_storage Models of a run, kept in memory.
    """
)
_ALGORITHMS = _table(
    """
    Algorithm ludus.algorithms.algorithm Interface of what turns a batch into a loss.
    Loss ludus.algorithms.algorithm A scalar to minimise and its statistics.
    Batch ludus.data.batch Trajectories stacked [T+1, B].
    PPO ludus.algorithms.ppo Proximal policy optimisation.
    A2C ludus.algorithms.actor_critic Advantage actor-critic.
    Impala ludus.algorithms.actor_critic V-trace actor-critic.
    MagnetPolicyGradient ludus.algorithms.magnet Policy gradient held near a slowly moving magnet.
    AlphaStarGradient ludus.algorithms.alphastar AlphaStar's TD(lambda), V-trace and UPGO.
    """
)
_MORE_ALGORITHMS = _table(
    """
    mappo ludus.algorithms.ppo PPO with the settings of multi-agent PPO.
    Cloning ludus.algorithms.cloning Behavioural cloning from recorded actions.
    Reference ludus.algorithms.algorithm A copy of the weights that an algorithm compares with.
    Teacher ludus.algorithms.teacher Keeps the policy near a teacher.
    EarlyGame ludus.algorithms.teacher The part of an episode in which a teacher counts.
    RewardWeights ludus.algorithms.alphastar How much each further reward counts.
    advantage_columns ludus.algorithms.returns Advantages and value targets of a batch.
    critic_loss ludus.algorithms.losses The loss of the value estimate.
    masked_mean ludus.algorithms.losses Mean over the rows that count.
    mean_over_ranks ludus.algorithms.losses Mean over the rows of all ranks.
    standardise ludus.algorithms.losses Zero mean and unit variance over the rows that count.
    detached ludus.algorithms.losses Statistics without gradient.
    discounts ludus.algorithms.returns The discount of each decision.
    td_lambda ludus.algorithms.returns TD(lambda) value targets.
    gae ludus.algorithms.returns Generalised advantage estimates.
    vtrace ludus.algorithms.returns V-trace targets.
    upgo ludus.algorithms.returns Upgoing policy gradient targets.
    """
)
_SERVICES = _table(
    """
    UserService ludus.services.resources A class whose methods run in processes of their own.
    service ludus.services.endpoints Marks a method that other processes may call.
    Solver ludus.services.solver Calls a service by its name.
    Publisher ludus.services.topics Sends messages to every subscriber of a topic.
    Subscriber ludus.services.topics Receives the messages of a topic.
    Resources ludus.services.resources What one process of a service needs.
    ServiceError ludus.services.endpoints A call of a service that failed.
    serving ludus.services.host Runs services outside of a training.
    ServedModels ludus.runtime.services Models of a run, fetched from its model service.
    """
)
_METRICS = _table(
    """
    TensorBoard ludus.observe.sinks Writes metrics as TensorBoard event files.
    Prometheus ludus.observe.sinks Serves the newest metrics to Prometheus.
    WandB ludus.observe.sinks Sends metrics to Weights & Biases.
    CSV ludus.observe.metrics Writes metrics as a CSV table.
    MetricsOutput ludus.observe.metrics Interface of a place that metrics go to.
    """
)
_REPLAYS = _table(
    """
    Replay ludus.data.replay A recorded game.
    ReplayDataset ludus.replays.dataset Episodes of replays on disk, read as batches.
    EpisodeFilter ludus.data.replay Which episodes of which replays a dataset is made from.
    write_dataset ludus.replays.dataset_writer Write episodes into a dataset folder.
    convert_replays ludus.replays.conversion:convert Make a dataset from replays.
    """
)
FRONT: Mapping[str, Names] = {
    "Runs, agents and settings": _RUNS,
    "Experiments": _EXPERIMENTS,
    "Games": _GAMES,
    "Leagues": _LEAGUE,
    "Networks": _MODELS,
    "Algorithms": _ALGORITHMS,
    "Services": _SERVICES,
    "Metrics": _METRICS,
    "Replays and datasets": _REPLAYS,
}
"""The names of `import ludus`, by subject."""

DOORS: Mapping[str, Names] = {
    "games": {**_GAMES, **_MORE_GAMES},
    "league": {**_LEAGUE, **_MORE_LEAGUE},
    "models": {**_MODELS, **_MORE_MODELS},
    "algorithms": {**_ALGORITHMS, **_MORE_ALGORITHMS},
}
"""The names of each side door: those of the front door on its subject, and more."""


def public_name(obj: type | Callable[..., Any]) -> str | None:
    """The public name of a class or function of Ludus; None for everything else."""
    return _by_address().get(f"{obj.__module__}:{getattr(obj, '__qualname__', '')}")


def find_public(name: str) -> PublicName | None:
    """The entry of a public name; None if there is no such name."""
    return _by_name().get(name)


def load_public(name: str) -> Any:
    """The object with this public name; LookupError with the nearest name if there is none."""
    found = find_public(name)
    if found is None:
        raise LookupError(f"{name!r} is no public name of Ludus{_nearest(name, _by_name())}")
    return _load(found.address)


def lazy(door: str = "") -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` for the package of a door; "" is the front door.

    Names are imported when they are first used: `import ludus` stays quick and works without PyTorch.
    """
    names, module = _names_of(door), f"ludus.{door}".rstrip(".")

    def getattribute(name: str) -> Any:
        if not door and name in DOORS:
            return importlib.import_module(f"ludus.{name}")
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}{_nearest(name, names)}")
        return _load(names[name].address)

    def directory() -> list[str]:
        # Without PyTorch, `help` still lists every name, and describes in full those that can be loaded.
        complete = importlib.util.find_spec("torch") is not None
        shown = names if complete else [name for name in names if _loads(names[name].address)]
        return sorted([*shown, *(() if door else DOORS)])

    return getattribute, directory, sorted(names)


def listing(door: str = "") -> str:
    """Every name of a door with one line about it, for the docstring of its package."""
    groups = FRONT if not door else {"Names": DOORS[door]}
    return "\n".join(
        f"\n{heading}\n{'-' * len(heading)}\n" + "\n".join(f"{name:<24} {one.about}" for name, one in names.items())
        for heading, names in groups.items()
    )


def _names_of(door: str) -> Names:
    if door:
        return DOORS[door]
    return {name: one for names in FRONT.values() for name, one in names.items()}


@cache
def _by_name() -> Names:
    return {name: one for door in ("", *DOORS) for name, one in _names_of(door).items()}


@cache
def _by_address() -> Mapping[str, str]:
    return {one.address: name for name, one in _by_name().items()}


def _load(address: str) -> Any:
    module, _, name = address.partition(":")
    found = importlib.import_module(module)
    return getattr(found, name) if name else found


def _loads(address: str) -> bool:
    try:
        _load(address)
    except ImportError:
        return False
    return True


def _nearest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else "; help(ludus) lists the public names"
