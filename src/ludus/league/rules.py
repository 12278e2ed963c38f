"""The settings of a league (`LeagueRules`, `Role`), and the line-ups of teams that a role can ask for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args

import numpy as np

from ludus.data.checks import require_in, require_one_of, unknown
from ludus.data.records import ModelId, Side
from ludus.data.schedules import LiveField
from ludus.data.search import split_search
from ludus.data.specs import SeatKind, patterns_of_seats
from ludus.league.matchmaking import POOLS, Candidates, Law, Matchmaker, SelfPlay, draw, uniform
from ludus.league.payoff import Payoff, PayoffRules, PayoffView
from ludus.league.players import FROZEN, MAX_ID_LENGTH, SCRIPTED, check_player_id
from ludus.league.population import Population
from ludus.league.promotion import EVERYONE, AfterReset, BoundedHistory, FromStart, Never, Promotion, Restart

SELF = "self"
LineUp = Mapping[str, str | Matchmaker]
"""Pattern of seats within the team (`seat0`, `seat[12]`, `*`; the first match wins) -> player on these seats:
"self", a player id, a learning role (one of its other players, none twice while there are enough), or a
matchmaker, which draws for every seat. Empty: the player itself on every seat."""

OpponentSeats = Literal["repeated", "line_up"]
Trainees = Literal["self", "side", "everyone"]


def check_line_up(line_up: LineUp, seats_per_team: Sequence[int], known: Collection[str]) -> None:
    """Raise for a line-up that can never be seated, naming the pattern. `known`: players and roles."""
    if not line_up:
        return
    if len(set(seats_per_team)) > 1:
        raise ValueError(
            "line_up: teams must have equally many seats, since sides take turns on them; "
            f"these have {', '.join(map(str, seats_per_team))}"
        )
    if SELF not in _by_seat(line_up, seats_per_team[0]):
        raise ValueError(f"line_up: no seat is left to the player itself; put {SELF!r} on one")
    for pattern, who in line_up.items():
        if isinstance(who, str) and who != SELF and who not in known:
            raise ValueError(f"line_up: {pattern}: {unknown('player or role', who, (SELF, *dict.fromkeys(known)))}")


def seat_players(
    line_up: LineUp, captain: str, num_seats: int, candidates: Candidates, payoff: Payoff, rng: np.random.Generator
) -> tuple[str, ...]:
    """The players of a team by seat, or the captain alone if it sits on all of them."""
    seated: list[str] = []
    for who in _by_seat(line_up, num_seats) if line_up else ():
        if isinstance(who, str):
            law = _seat_law(who, captain, seated, candidates)
            seated.append(draw(law, rng) if len(law) > 1 else next(iter(law)))
        else:
            seated.append(who.choose(captain, candidates, payoff, rng)[0])
    return tuple(seated) if set(seated) - {captain} else (captain,)


def make_sides(
    teams: Sequence[tuple[str, tuple[str, ...]]], trains: Trainees, learning: Collection[str]
) -> tuple[Side, ...]:
    """Sides from (captain, players) of each team. With "self" only the captain of the first team trains, wherever it
    sits; with "side" all learning players on its side do, and with "everyone" all at the table."""
    learner, own = teams[0]
    everyone = (player for _, players in teams for player in players)
    trainees = {"self": {learner}, "side": {learner, *own}, "everyone": {*everyone}}[trains] & {*learning}
    return tuple(
        Side(
            players=players,
            trains={*players} <= trainees or tuple(dict.fromkeys(one for one in players if one in trainees)) or False,
            captain=None if players == (captain,) else captain,
        )
        for captain, players in teams
    )


def _by_seat(line_up: LineUp, num_seats: int) -> list[str | Matchmaker]:
    seats = [(f"seat{number}",) for number in range(num_seats)]
    return [line_up[pattern] for pattern in patterns_of_seats(line_up, seats, "line_up")]


def _seat_law(who: str, captain: str, seated: Sequence[str], candidates: Candidates) -> Law:
    """The law of a seat. The captain sits there if the player has left or its role has no other player."""
    if who in candidates.roles:
        others = [player for player in candidates.learning(who) if player != captain]
        return uniform([player for player in others if player not in seated] or others, captain)
    return {who if who in candidates and who != SELF else captain: 1.0}


class RoleModel(Protocol):
    """A model, such as `ActorCritic`. The league does not use it."""

    def build(self, kind: SeatKind, seed: int) -> Any: ...


class RoleAlgorithm(Protocol):
    """An algorithm, such as `PPO`. The league does not use it."""

    def prepare(self, policy: Any, references: Any, batch: Any) -> Any: ...
    def loss(self, policy: Any, batch: Any) -> Any: ...


class RoleLearner(Protocol):
    """A `LearnerConfig`. The league does not use it."""

    @property
    def batch_size(self) -> int: ...
    @property
    def schedule(self) -> Literal["sync", "async"]: ...


OWN_PARTS = ("model", "algorithm", "learner")
"""Parts of an experiment that a role may have its own of."""
_ROOM_FOR_NUMBER = 12
"""Characters of an id left for the number of a snapshot."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Role:
    """The settings that some learning players have in common."""

    count: int = 1
    """Number of players of this role."""
    matchmaking: LiveField[Matchmaker] = field(default_factory=SelfPlay)
    """Chooses the opponents in training."""
    promotion: LiveField[Promotion] = field(default_factory=Never)
    """Decides when a snapshot of a player joins the league as a frozen player."""
    history: LiveField[BoundedHistory | None] = None
    """Which snapshots of a player stay in the league; None: all. The models of those that leave stay in the pool."""
    initial_snapshot: LiveField[bool] = True
    """Freeze each player once as soon as it has published weights, so that the pool is never empty."""
    reset_probability: LiveField[float] = 0.0
    """Chance that a player is reset after a snapshot that its promotion asked for."""
    restart: LiveField[Restart] = field(default_factory=FromStart)
    """Chooses the model that a reset player starts from."""
    after_reset: LiveField[AfterReset] = field(default_factory=AfterReset)
    start: str | None = None
    """The model that players start from, or where `ludus train` finds one; None: fresh weights."""
    value_only_at_start: int = 0
    """Decisions on which players with a `start` first train only their value."""
    snapshot_weights: LiveField[Literal["live", "average"]] = "live"
    """Which of the learner's two sets of weights is frozen."""
    population: LiveField[Population | None] = None
    """Settings that the players search over together."""
    line_up: LiveField[LineUp] = field(default_factory=dict)
    """The players on the seats of the team; empty: the player itself on all of them."""
    opponents: LiveField[OpponentSeats] = "repeated"
    """An opponent's team: the opponent on every seat, or `line_up` with the opponent as "self"."""
    trains: LiveField[Trainees] = "self"
    """Who trains in the matches: the player alone, all learning players on its side, or all at the table."""
    model: RoleModel | None = None
    """The network of its players; None: the experiment's `model`."""
    algorithm: LiveField[RoleAlgorithm | None] = None
    """How a batch of its players becomes a loss; None: the experiment's `algorithm`."""
    learner: RoleLearner | None = None
    """A `LearnerConfig` for its players, whole; None: the experiment's `learner`. What belongs to the whole run, such
    as `schedule` and `device`, is the experiment's."""

    def __post_init__(self) -> None:
        require_one_of(self, get_args(OpponentSeats), opponents=self.opponents)
        require_one_of(self, get_args(Trainees), trains=self.trains)
        require_in(self, "[0, 1]", reset_probability=self.reset_probability)
        require_in(self, "[0, inf]", value_only_at_start=self.value_only_at_start)


@dataclass(frozen=True, kw_only=True, slots=True)
class LeagueRules:
    """The roles of a league, its bots and outside players, and how results become a payoff."""

    roles: Mapping[str, Role]
    bots: tuple[str, ...] = ()
    """Ids of scripted players."""
    external: Mapping[str, str] = field(default_factory=dict)
    """Frozen players from outside: id -> model in the run's model pool, or where `ludus train` finds one; with
    `?search=64` behind it, the player searches with 64 simulations before each move."""
    payoff: LiveField[PayoffRules] = field(default_factory=PayoffRules)
    decide_on: LiveField[PayoffView] = "training"
    """The payoff that matchmaking and promotion read."""
    capacity: LiveField[int | None] = None
    """Players that train at the same time, in turns; None: all of them."""
    turn: LiveField[int] = 1_000_000
    """Decisions of a turn, after which the player gives up its place."""

    def __post_init__(self) -> None:
        if not self.roles:
            raise ValueError("LeagueRules.roles is empty: a league needs a learning role such as 'main'")
        require_in(self, "[1, inf]", capacity=self.capacity, turn=self.turn)
        require_one_of(self, get_args(PayoffView), decide_on=self.decide_on)
        for name, role in self.roles.items():
            self._check_role(name, role)
        ids = [player for name in self.roles for player in self.players_of(name)]
        ids += [*self.bots, *self.external]
        for player in ids:
            check_player_id(player)
            if ids.count(player) > 1:
                raise ValueError(f"player id {player!r} would be given twice by the roles, bots and external players")
        _ = self.searching  # raises for a number that is none

    @property
    def searching(self) -> dict[str, int]:
        """Players from outside that search, with the number of simulations."""
        asked = {player: split_search(model)[1] for player, model in self.external.items()}
        return {player: simulations for player, simulations in asked.items() if simulations is not None}

    def require_model_ids(self) -> None:
        """Raise for models that are addresses: once a run has begun, all models are in its pool."""
        for player, model in self.external.items():
            _check_model(f"LeagueRules.external[{player!r}]", split_search(model)[0])
        for name, role in self.roles.items():
            if role.start is not None:
                _check_model(f"Role.start of {name!r}", role.start)

    def players_of(self, role: str) -> list[str]:
        """Ids of a role's learning players: the name of the role, numbered from 0 if there are several."""
        count = self.roles[role].count
        return [role] if count == 1 else [f"{role}_{index}" for index in range(count)]

    def _check_role(self, name: str, role: Role) -> None:
        reserved = (FROZEN, SCRIPTED, EVERYONE, SELF, *POOLS)
        if name in reserved:
            raise ValueError(f"role name {name!r} is reserved: {', '.join(dict.fromkeys(reserved))}")
        if "." in check_player_id(name):
            raise ValueError(f"role name {name!r} must not contain '.': snapshots are called PLAYER.NUMBER")
        if len(name) + len(str(role.count)) + 1 > MAX_ID_LENGTH - _ROOM_FOR_NUMBER:
            raise ValueError(f"role name {name!r} is too long to number its players and their snapshots")
        if role.count < 1:
            raise ValueError(f"role {name!r} has count={role.count}; a role needs at least one player")
        if role.population is not None:
            role.population.check_memory(self.payoff)


def _check_model(place: str, model: str) -> None:
    try:
        check_player_id(ModelId.parse(model).player)
    except ValueError:
        raise ValueError(f"{place} is no model id: write PLAYER:INCARNATION:STEP, got {model!r}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class Exploiters:
    """Best responses that a run trains against its own snapshots: the metrics `PLAYER/exploiter_win_rate` and
    `PLAYER/exploiter_score`, which are lower bounds on how much the player can be beaten by."""

    every: int = 1_000_000
    """Decisions of a player between two snapshots that are measured."""
    share: float = 0.1
    """Decisions that exploiters train on, per decision of the players that they measure: each gets `share * every`."""
    roles: tuple[str, ...] = ()
    """Roles whose players are measured; empty: the first role."""
    episodes: int = 1_024
    """Fewest games that measure the best of an exploiter's snapshots."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", every=self.every, episodes=self.episodes)
        require_in(self, "(0, inf]", share=self.share)

    @property
    def budget(self) -> int:
        """Decisions that each exploiter trains on."""
        return max(1, round(self.share * self.every))


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    """The opponents of every new snapshot, and how often snapshots are measured again."""

    opponents: tuple[str, ...] = ("random",)
    """Scripted players. Those that are not yet bots of the league join it."""
    past: int | Literal["all"] = 3
    """Number of the latest earlier snapshots that it also meets; all of them for a meta-strategy (PSRO)."""
    ladder: int = 1
    """Further matches per new snapshot, each between the two snapshots with the least certain result."""
    episodes: int = 512
    """Minimum number of episodes per match, seats in rotation."""
    exact_nodes: int = 20_000
    """In a game whose tree has at most so many nodes, every new snapshot is measured exactly: the metric
    `PLAYER/nash_conv`. 0: never."""
    exploiters: Exploiters | None = None
    """Exploiters that are trained beside the run, for games whose tree cannot be walked. None: none."""
    recorded_games: int = 200
    """Games that the run keeps for the dashboard, one per snapshot and opponent, the newest. 0: none."""

    def __post_init__(self) -> None:
        require_in(self, "[1, inf]", episodes=self.episodes)
        require_in(self, "[0, inf]", recorded_games=self.recorded_games)
        require_in(self, "[0, inf]", exact_nodes=self.exact_nodes)
        require_in(self, "[0, inf]", past=None if self.past == "all" else self.past, ladder=self.ladder)
