"""OpenSpiel's games: turn-based, simultaneous, with chance that is drawn from the seed of the table."""

from __future__ import annotations

import importlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from random import Random
from typing import Any, Literal

import numpy as np
import pyspiel
from numpy.typing import NDArray
from open_spiel.python.observation import INFO_STATE_OBS_TYPE, make_observation

from ludus.data.game_tree import CHANCE, OVER, TreeState
from ludus.data.phantom_tree import Moves, PhantomTree, hex_connection, three_in_a_row
from ludus.data.specs import CRITIC_PREFIX, ActionSpec, Choice, GameSpec, ObservationSpec, Part, Planes, Vector
from ludus.data.trees import IntArray, Tree, put, take
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.search import SearchBot
from ludus.games.seat_rows import nearest
from ludus.games.tables import ArrayTables
from ludus.games.tree_batch import TreeBatch

MOST_ACTIONS = 2**15
MOST_NUMBERS = 2**20
"""Largest observation: four megabytes for every seat of every table."""

STATE = f"{CRITIC_PREFIX}state"
"""The array that only critics see."""

PARTNERS = ("bridge", "euchre", "spades", "tiny_bridge_4p")
"""Games whose seats win and lose in pairs; OpenSpiel does not say so."""

PHANTOM_GAMES = (("phantom_ttt", "classical"), ("dark_hex", "cdh"))
"""With their `gameversion`."""
MOST_CELLS = 9

_CHANCE = int(pyspiel.PlayerId.CHANCE)
_SIMULTANEOUS = int(pyspiel.PlayerId.SIMULTANEOUS)


@dataclass(frozen=True, kw_only=True)
class OpenSpiel:
    """A game by its name (`leduc_poker`), with parameters (`goofspiel(num_cards=4,players=3)`) or not."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the game in addition to those in its name."""
    observation: Literal["auto", "information", "observation"] = "auto"
    """`information`: all that a seat has learnt since the start; `observation`: the present position; `auto`: the
    first, if the game has it."""
    teams: tuple[int, ...] | None = None
    """The team of each seat; default: partners in games known for them, one team where all get the same returns, else
    every seat for itself."""
    max_length: int | None = None
    """Steps after which an episode is cut off; default: the game's own limit. A lower limit excludes the tree."""
    critic_state: bool = False
    """Show critics (`model.central_critic`) what all seats see together, in the order of the seats; for games of hidden
    information."""
    largest_tree: int = 300_000
    """Most histories of a game tree that is offered for exact computations."""
    from_tree: bool = False
    """Step tables by look-up in the game tree, which is built once in every process: many times faster. Seats that move
    at the same time then do so one after the other, without seeing the choices of the others."""

    @cached_property
    def spec(self) -> GameSpec:
        game, kind = self._game, self._game.get_type()
        limits = [limit for limit in (self.max_length, int(game.max_game_length())) if limit is not None]
        in_turn = self.from_tree and kind.dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS
        return GameSpec.symmetric(
            name=self.name,
            num_seats=game.num_players(),
            observation=self._seen.spec,
            action=ActionSpec(heads={"move": Choice(num=game.num_distinct_actions())}),
            max_length=min(limits) * (game.num_players() if in_turn else 1),
            teams=self._teams(),
            zero_sum=kind.utility == pyspiel.GameType.Utility.ZERO_SUM,
            hidden_information=kind.information != pyspiel.GameType.Information.PERFECT_INFORMATION,
            chance=kind.chance_mode != pyspiel.GameType.ChanceMode.DETERMINISTIC,
        )

    def tables(self, num_tables: int) -> GameBatch:
        if self.from_tree:
            if self.tree() is None:
                raise ValueError(
                    f"from_tree: {self.name} has no game tree of at most {self.largest_tree:,} histories (largest_tree)"
                )
            return TreeBatch(self.spec, self._root, num_tables)
        return OpenSpielTables(self.spec, self._seen, num_tables, searchable=self._has_trees)

    @property
    def score_range(self) -> tuple[float, float]:
        """The lowest and the highest score that the game can end with."""
        return float(self._game.min_utility()), float(self._game.max_utility())

    def bots(self) -> Mapping[str, Bot]:
        bots: dict[str, Bot] = {"random": RandomBot()}
        if self._has_trees and _can_be_searched(self._game.get_type()):
            bots["mcts"] = MctsBot()
        return bots

    def tree(self) -> TreeState | None:
        """The root, if the game has at most `largest_tree` histories and tells information states."""
        return self._root if self._has_trees and self._is_small else None

    def exact_tree(self) -> PhantomTree | None:
        """For phantom tic-tac-toe and dark hex of at most nine cells, where a seat that fails tries again."""
        name, options = self._game.get_type().short_name, self._game.get_parameters()
        if not self._has_trees or (name, options.get("gameversion")) not in PHANTOM_GAMES:
            return None
        if options["obstype"] != "reveal-nothing" or self._game.num_distinct_actions() > MOST_CELLS:
            return None
        if name == "phantom_ttt":
            return PhantomTree(three_in_a_row(), self._seen.after_attempts)
        return PhantomTree(hex_connection(options["num_rows"], options["num_cols"]), self._seen.after_attempts)

    @property
    def _has_trees(self) -> bool:
        """Trees do not represent episodes that are cut off."""
        length = self._game.max_game_length()
        return self._seen.has_trees and (self.max_length is None or self.max_length >= length)

    @cached_property
    def _is_small(self) -> bool:
        """Whether the tree has at most `largest_tree` histories."""
        found, waiting = 0, [self._root]
        while waiting:
            state = waiting.pop()
            found += 1
            if found + len(waiting) > self.largest_tree:
                return False
            seat = state.seat()
            if seat == CHANCE:
                waiting += [state.child(outcome) for outcome, _ in state.chance_outcomes()]
            elif seat != OVER:
                waiting += [state.child(action) for action in state.legal_actions()]
        return True

    @cached_property
    def _root(self) -> OpenSpielState:
        return OpenSpielState(self._seen, self._game.new_initial_state())

    @cached_property
    def _game(self) -> Any:
        game = _load(self.name, self.options)
        _require_playable(game, self.name)
        return game

    @cached_property
    def _seen(self) -> TensorReader:
        kind = self._game.get_type()
        has = {"information": kind.provides_information_state_tensor, "observation": kind.provides_observation_tensor}
        wanted = self.observation
        if wanted == "auto":
            wanted = "information" if has["information"] else "observation"
        if not has[wanted]:
            other = next((name for name, there in has.items() if there), None)
            hint = f"; use observation={other!r}" if other else ", so that a network has nothing to look at"
            raise ValueError(f"{self.name} has no {wanted} tensor{hint}")
        if self.critic_state and kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION:
            raise ValueError(f"critic_state: {self.name} has no hidden information, so every seat sees the whole state")
        seen = TensorReader(self._game, wanted, self.critic_state)
        if seen.size * (1 + self.critic_state * self._game.num_players()) > MOST_NUMBERS:
            raise ValueError(f"{self.name}: an observation of {seen.size:,} numbers is too large")
        return seen

    def _teams(self) -> tuple[int, ...] | None:
        seats: int = self._game.num_players()
        kind = self._game.get_type()
        if self.teams is not None:
            if len(self.teams) != seats:
                raise ValueError(f"{self.name} has {seats} seats, but teams has {len(self.teams)} numbers")
            return self.teams
        if kind.utility == pyspiel.GameType.Utility.IDENTICAL:
            return (0,) * seats
        return (0, 1, 0, 1) if kind.short_name in PARTNERS and seats == 4 else None


class OpenSpielTables(ArrayTables):
    """One state per table, changed in place, with the random numbers of its chance nodes."""

    def __init__(self, spec: GameSpec, seen: TensorReader, num_tables: int, *, searchable: bool) -> None:
        super().__init__(spec, num_tables)
        self._game = seen.game
        self._seen = TensorReader(seen.game, seen.name, seen.with_state)  # with a tensor of its own
        self._tensor = self._seen.tensor.reshape(seen.shape)
        self._pays_late = seen.game.get_type().reward_model == pyspiel.GameType.RewardModel.TERMINAL
        self._states: list[Any] = [None] * num_tables
        self._random = [Random() for _ in range(num_tables)]
        self._steps = [0] * num_tables
        self._paid = np.zeros((num_tables, spec.num_seats))
        self._acted = np.zeros((num_tables, spec.num_seats), np.bool_)
        seats, tables = range(spec.num_seats), range(num_tables)
        observation, legal = self.view.observation[0][seen.name], self.view.legal[0]["move"]
        self._shown = [[observation[table, seat] for seat in seats] for table in tables]
        self._state_shown = self.view.observation[0].get(STATE)
        self._legal = [[legal[table, seat] for seat in seats] for table in tables]
        if searchable:
            self.tree_state = self._tree_state  # with this, and only then, it is a `HasTrees`
        if spec.chance is False:
            self.positions, self.set_positions = self._positions, self._set_positions  # a `HasPositions`

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._start_episodes(tables)
        self.view.to_act[tables] = False
        self._paid[tables] = 0.0
        self._acted[tables] = False
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            self._random[table].seed(seed)
            self._steps[table] = 0
            self._states[table] = self._new_state(seed)
            self._go_on(table)

    def step(self, actions: Actions) -> None:
        view, moves = self.view, actions[0]["move"]
        tables, seats = np.nonzero(view.to_act)
        self._require_legal("move", tables, seats, moves[tables, seats])
        running = np.flatnonzero(view.to_act.any(axis=1)).tolist()
        self._acted |= view.to_act
        view.to_act[:] = False
        listed, states, steps = moves.tolist(), self._states, self._steps
        for table in running:
            state = states[table]
            player = state.current_player()
            if player == _SIMULTANEOUS:
                state.apply_actions(listed[table])
            else:
                state.apply_action(listed[table][player])
            steps[table] += 1
            self._go_on(table)
            if steps[table] == self.spec.max_length and not view.over[table]:
                self._cut_off(table)
            elif not self._pays_late or view.over[table]:
                self._pay(table)

    def _positions(self, tables: IntArray) -> Tree:
        states = np.empty(len(tables), object)
        states[:] = [self._states[table].clone() for table in tables.tolist()]
        own = {"state": states, "steps": np.array(self._steps)[tables]}
        return own | take({**self.view.named(), "paid": self._paid, "acted": self._acted}, tables)

    def _set_positions(self, tables: IntArray, positions: Tree) -> None:
        put({**self.view.named(), "paid": self._paid, "acted": self._acted}, tables, positions)
        for table, state, steps in zip(tables.tolist(), positions["state"], positions["steps"].tolist(), strict=True):
            self._states[table], self._steps[table] = state.clone(), steps

    def _tree_state(self, table: int) -> TreeState:
        return OpenSpielState(self._seen, self._states[table].clone())

    def _new_state(self, seed: int) -> Any:
        if not self._seen.draws_itself:
            return self._game.new_initial_state()
        # The game draws chance outcomes itself, so every episode needs a game of its own.
        parameters = {**self._game.get_parameters(), "rng_seed": seed % 2**31}
        return pyspiel.load_game(self._game.get_type().short_name, parameters).new_initial_state()

    def _go_on(self, table: int) -> None:
        """Draw chance outcomes until a seat must act, whose observation is written, or the game is over."""
        state = self._states[table]
        player = state.current_player()
        while player == _CHANCE:
            state.apply_action(_drawn(state.chance_outcomes(), self._random[table].random()))
            player = state.current_player()
        if self._state_shown is not None and not state.is_terminal():
            self._state_shown[table] = self._seen.state(state)
        if player >= 0:
            self._show(table, state, player)
        elif player == _SIMULTANEOUS:
            for seat in range(self.spec.num_seats):
                self._show(table, state, seat)
        else:
            self.view.over[table] = True

    def _show(self, table: int, state: Any, seat: int) -> None:
        self._seen.look(state, seat)
        self._shown[table][seat][...] = self._tensor
        mask = self._legal[table][seat]
        mask[:] = False
        mask[state.legal_actions(seat)] = True
        self.view.to_act[table, seat] = True

    def _pay(self, table: int) -> None:
        """Write rewards, the returns so far less those already paid, and scores."""
        returns = self._states[table].returns()
        self.view.reward[table] = returns - self._paid[table]
        self._paid[table] = returns
        for team, seats in enumerate(self.spec.seats_of_team):
            self.view.score[table, team] = sum(returns[seat] for seat in seats) / len(seats)

    def _cut_off(self, table: int) -> None:
        self.view.to_act[table] = False
        self.view.truncated[table] = True
        for seat in np.flatnonzero(self._acted[table]).tolist():
            self._seen.look(self._states[table], seat)
            self._shown[table][seat][...] = self._tensor
        self._pay(table)


@dataclass(frozen=True, slots=True, eq=False)
class OpenSpielState:
    """A history. Seats that move at the same time do so in order, without seeing the choices of the others."""

    seen: TensorReader
    state: Any
    chosen: tuple[int, ...] = ()
    """Choices of the first seats, where all move at the same time."""

    def seat(self) -> int:
        player = int(self.state.current_player())
        if player >= 0:
            return player
        if player == pyspiel.PlayerId.SIMULTANEOUS:
            return len(self.chosen)
        return CHANCE if player == pyspiel.PlayerId.CHANCE else OVER

    def legal_actions(self) -> Sequence[int]:
        legal: Sequence[int] = self.state.legal_actions(self.seat())
        return legal

    def chance_outcomes(self) -> Sequence[tuple[int, float]]:
        outcomes: Sequence[tuple[int, float]] = self.state.chance_outcomes()
        return [(outcome, probability) for outcome, probability in outcomes if probability > 0.0]

    def child(self, action: int) -> OpenSpielState:
        if self.state.current_player() != pyspiel.PlayerId.SIMULTANEOUS:
            return OpenSpielState(self.seen, self.state.child(action))
        chosen = (*self.chosen, action)
        if len(chosen) < self.seen.game.num_players():
            return OpenSpielState(self.seen, self.state, chosen)
        after = self.state.clone()
        after.apply_actions(chosen)
        return OpenSpielState(self.seen, after)

    def returns(self) -> Sequence[float]:
        returns: Sequence[float] = self.state.returns()
        return returns

    def information_state(self) -> Hashable:
        if self.seen.keyed_by_history:
            return tuple(self.state.history())
        key: str = self.state.information_state_string(self.seat())
        if self.seen.tells_length:
            board, _, attempts = key.rsplit("\n", 2)
            return board + attempts
        return key

    def observation(self) -> Tree:
        return self.seen.of(self.state, self.seat())


class TensorReader:
    """Reads observations of a game. OpenSpiel writes the tensor in place."""

    def __init__(self, game: Any, name: Literal["information", "observation"], with_state: bool = False) -> None:
        kind = game.get_type()
        self.game = game
        self.name = name
        self.with_state = with_state
        """Critics see the tensors of all seats."""
        if name == "information":
            observer = make_observation(game, INFO_STATE_OBS_TYPE)
            shape = game.information_state_tensor_shape()
        else:
            observer, shape = make_observation(game), game.observation_tensor_shape()
        self.tensor: NDArray[np.float32] = observer.tensor
        self.size = math.prod(shape)
        self.shape: tuple[int, ...] = tuple(shape) if len(shape) == 3 else (self.size,)
        # The inner observer does the same without a second call through Python.
        self.look = getattr(observer, "_observation", observer).set_from
        hides = kind.information == pyspiel.GameType.Information.IMPERFECT_INFORMATION
        self.draws_itself = _draws_itself(kind)
        self.has_trees = not self.draws_itself and (kind.provides_information_state_string or not hides)
        self.keyed_by_history = not hides
        # Its strings, but no tensor, tell how many attempts both have made, and so how often the other seat failed.
        self.tells_length = kind.short_name == "dark_hex" and game.get_parameters()["obstype"] == "reveal-nothing"

    def __reduce__(self) -> tuple[Any, ...]:
        return TensorReader, (self.game, self.name, self.with_state)

    @property
    def spec(self) -> ObservationSpec:
        first, *plane = self.shape
        seats = self.game.num_players()
        own: Part = Vector(size=first)
        whole: Part = Vector(size=seats * first)
        if plane:
            own = Planes(channels=first, height=plane[0], width=plane[1])
            whole = replace(own, channels=seats * first)
        critic = {STATE.removeprefix(CRITIC_PREFIX): whole} if self.with_state else {}
        return ObservationSpec(parts={self.name: own}, critic=critic, common=tuple(critic))

    def of(self, state: Any, seat: int) -> Tree:
        self.look(state, seat)
        seen: Tree = {self.name: self.tensor.reshape(self.shape).copy()}
        if self.with_state:
            seen[STATE] = self.state(state)
        return seen

    def after_attempts(self, seat: int, moves: Moves) -> Tree:
        """What `of` shows a seat of a phantom game: the state of each cell and, since the start, its attempts."""
        num, cells = moves.shape
        stones = np.zeros((num, cells), np.int8)  # 1: of seat 0, -1: of seat 1
        attempts = np.zeros((num, cells, cells), np.bool_)
        for place, attempt in enumerate(moves.T):
            done = np.flatnonzero(attempt)
            cell = np.abs(attempt[done]) - 1
            stones[done, cell] = np.sign(attempt[done]) * (1 - 2 * seat)
            attempts[done, place, cell] = True
        if self.game.get_type().short_name == "phantom_ttt":
            view = stones[:, None] == np.array([0, -1, 1])[:, None]
        else:  # nine states of each cell, of which a seat is told three
            view = stones[:, :, None] == np.arange(-4, 5)
        parts = [view.reshape(num, -1), attempts.reshape(num, -1)][: 1 + (self.name == "information")]
        seen: Tree = {self.name: np.concatenate(parts, axis=1, dtype=np.float32).reshape(-1, *self.shape)}
        if self.with_state:
            first, *rest = self.shape
            seen[STATE] = np.zeros((len(moves), first * self.game.num_players(), *rest), np.float32)
        return seen

    def state(self, state: Any) -> NDArray[np.float32]:
        """The tensors of all seats, one after the other; whatever is hidden from one seat is in that of another."""
        rows = []
        for seat in range(self.game.num_players()):
            self.look(state, seat)
            rows.append(self.tensor.reshape(self.shape).copy())
        return np.concatenate(rows)


@dataclass(frozen=True, kw_only=True)
class MctsBot(SearchBot):
    """OpenSpiel's Monte Carlo tree search: random playouts, a new tree for every move."""

    simulations: int = 200
    uct_c: float = 2.0

    def best_actions(self, state: TreeState, random: Random) -> list[int]:
        assert isinstance(state, OpenSpielState)
        game = state.seen.game
        evaluator = pyspiel.RandomRolloutEvaluator(n_rollouts=1, seed=random.getrandbits(31))
        bot = pyspiel.MCTSBot(
            game,
            evaluator,
            uct_c=self.uct_c,
            max_simulations=self.simulations,
            max_memory_mb=100,
            solve=True,
            seed=random.getrandbits(31),
            verbose=False,
        )
        return [int(bot.step(state.state))]


def _drawn(outcomes: list[tuple[int, float]], draw: float) -> int:
    for outcome, probability in outcomes:
        draw -= probability
        if draw < 0.0:
            return outcome
    # The probabilities add up to slightly less than one.
    return max(outcomes, key=lambda pair: pair[1])[0]


def _load(name: str, options: Mapping[str, Any]) -> Any:
    short = name.partition("(")[0]
    if short.startswith("python_"):
        importlib.import_module("open_spiel.python.games")
    known = pyspiel.registered_names()
    if short not in known:
        hint = nearest(short, known, otherwise="pyspiel.registered_names() lists them")
        raise ValueError(f"OpenSpiel has no game {short!r}{hint}")
    try:
        parameters = {**pyspiel.game_parameters_from_string(name), **options}
        parameters.pop("name", None)
        return pyspiel.load_game(short, parameters)
    except pyspiel.SpielError as error:
        raise ValueError(f"OpenSpiel cannot make {name!r}: {error}") from None


def _require_playable(game: Any, name: str) -> None:
    kind, actions = game.get_type(), game.num_distinct_actions()
    if kind.dynamics == pyspiel.GameType.Dynamics.MEAN_FIELD:
        reason = "it is a mean-field game, whose seats play against a distribution of themselves"
    elif not 1 <= actions <= MOST_ACTIONS:
        reason = f"it has {actions:,} actions, and a head takes 1 to {MOST_ACTIONS:,}"
    elif _draws_itself(kind) and "rng_seed" not in game.get_parameters():
        reason = "it draws its chances itself and takes no rng_seed, so that no episode could be repeated"
    else:
        return
    raise ValueError(f"{name} cannot be played: {reason}")


def _draws_itself(kind: Any) -> bool:
    return bool(kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC)


def _can_be_searched(kind: Any) -> bool:
    return bool(
        kind.dynamics == pyspiel.GameType.Dynamics.SEQUENTIAL
        and kind.information == pyspiel.GameType.Information.PERFECT_INFORMATION
        and kind.reward_model == pyspiel.GameType.RewardModel.TERMINAL
    )
