"""OpenSpiel's games: turn-based, simultaneous, with chance, for any number of seats.

Chance is drawn here, from the seed of the table, so that an episode depends on its seed and actions only.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from random import Random
from typing import Any, Literal

import pyspiel

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Part, Planes, Vector
from ludus.data.tree_game import TreeState
from ludus.games.adapters.openspiel_tables import OpenSpielTables
from ludus.games.adapters.openspiel_tree import OpenSpielState, Seen, is_small
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch
from ludus.games.search import SearchBot

MOST_ACTIONS = 2**15
MOST_NUMBERS = 2**20
"""Of one observation: four megabytes for every seat of every table."""

PARTNERS = ("bridge", "euchre", "spades", "tiny_bridge_4p")
"""Games whose seats win and lose in pairs, which OpenSpiel does not tell."""


@dataclass(frozen=True, kw_only=True)
class OpenSpiel:
    """A game by its name (`leduc_poker`), with parameters (`goofspiel(num_cards=4,players=3)`) or not."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Parameters of the game, beside those in its name."""
    observation: Literal["auto", "information", "observation"] = "auto"
    """What a seat sees: all that it has learnt since the start, or what there is to see now. `auto`: the
    first, where the game has it."""
    teams: tuple[int, ...] | None = None
    """The team of each seat; default: partners in the games known for them, one team where all get the
    same, else every seat for itself."""
    max_length: int | None = None
    """Cuts off longer episodes; default: the game's own limit. What is cut off has no tree."""
    largest_tree: int = 300_000
    """The game tree is offered for exact computations up to this many histories."""

    @cached_property
    def spec(self) -> GameSpec:
        game, kind = self._game, self._game.get_type()
        limits = [limit for limit in (self.max_length, int(game.max_game_length())) if limit is not None]
        return GameSpec.symmetric(
            name=self.name,
            num_seats=game.num_players(),
            observation=ObservationSpec(parts={self._seen.name: _part(self._seen.shape)}),
            action=ActionSpec(heads={"move": Choice(num=game.num_distinct_actions())}),
            max_length=min(limits),
            teams=self._teams(),
            zero_sum=kind.utility == pyspiel.GameType.Utility.ZERO_SUM,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return OpenSpielTables(self.spec, self._seen, num_tables, searchable=self._has_trees)

    def bots(self) -> Mapping[str, Bot]:
        bots: dict[str, Bot] = {"random": RandomBot()}
        if self._has_trees and _can_be_searched(self._game.get_type()):
            bots["mcts"] = MctsBot()
        return bots

    def tree(self) -> TreeState | None:
        """The root, if the game has at most `largest_tree` histories and says what a seat knows."""
        return self._root if self._has_trees and self._is_small else None

    @property
    def _has_trees(self) -> bool:
        """A tree knows nothing of episodes that are cut off here."""
        return self._seen.has_trees and self.spec.max_length == self._game.max_game_length()

    @cached_property
    def _is_small(self) -> bool:
        return is_small(self._root, self.largest_tree)

    @property
    def _root(self) -> OpenSpielState:
        return OpenSpielState(self._seen, self._game.new_initial_state())

    @cached_property
    def _game(self) -> Any:
        game = _load(self.name, self.options)
        _require_playable(game, self.name)
        return game

    @cached_property
    def _seen(self) -> Seen:
        kind = self._game.get_type()
        has = {
            "information": kind.provides_information_state_tensor,
            "observation": kind.provides_observation_tensor,
        }
        wanted = self.observation
        if wanted == "auto":
            wanted = "information" if has["information"] else "observation"
        if not has[wanted]:
            other = next((name for name, there in has.items() if there), None)
            hint = f"; use observation={other!r}" if other else ", so that a network has nothing to look at"
            raise ValueError(f"{self.name} has no {wanted} tensor{hint}")
        seen = Seen(self._game, wanted)
        if seen.size > MOST_NUMBERS:
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


def _load(name: str, options: Mapping[str, Any]) -> Any:
    short = name.partition("(")[0]
    if short.startswith("python_"):
        importlib.import_module("open_spiel.python.games")
    known = pyspiel.registered_names()
    if short not in known:
        close = difflib.get_close_matches(short, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "pyspiel.registered_names() lists them"
        raise ValueError(f"OpenSpiel has no game {short!r}; {hint}")
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


def _part(shape: tuple[int, ...]) -> Part:
    if len(shape) == 3:
        return Planes(channels=shape[0], height=shape[1], width=shape[2])
    return Vector(size=shape[0])
