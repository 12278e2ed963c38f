"""Pgx's games: rules in JAX, compiled once for all tables. `games/device/pgx_game.py` plays them on a device."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

# JAX shares a GPU with PyTorch, and a worker has one core. Importing Pgx starts JAX, so this comes before.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("JAX_CPU_ENABLE_ASYNC_DISPATCH", "false")
os.environ.setdefault("NPROC", "1")
os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen=false {os.environ.get('XLA_FLAGS', '')}".strip()

import jax
import jax.numpy as jnp
import pgx

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Part, Planes, Vector
from ludus.data.trees import IntArray, Tree, put, take, under
from ludus.games.game import Actions
from ludus.games.seat_rows import nearest
from ludus.games.seeding import mix
from ludus.games.tables import ArrayTables, GameDefaults

# Ludus forks only to run another program at once.
warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)

Arrays = dict[str, Any]
"""The state of the tables: name -> JAX array [rows, ...]."""
HEAD, PART = "move", "observation"
_FEWEST_ROWS = 16
START_DRAWS = 2
KEY_BITS = 24
"""Of each of the two random numbers that a key is made of: as many as a float32 in [0, 1) has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Facts:
    """What Pgx does not say about a game."""

    max_length: int = 10_000
    hidden: bool | None = None
    chance: bool = True
    """Whether steps are random; if not, only the start is."""


def _bounded(max_length: int, *, hidden: bool = False) -> _Facts:
    return _Facts(max_length=max_length, hidden=hidden, chance=False)


_FACTS: Mapping[str, _Facts] = {
    "2048": _Facts(max_length=100_000, hidden=False),
    "animal_shogi": _bounded(256),
    "backgammon": _Facts(hidden=False),
    "chess": _bounded(512),
    "connect_four": _bounded(42),
    "gardner_chess": _bounded(256),
    "go_9x9": _bounded(2 * 9 * 9),
    "go_19x19": _bounded(2 * 19 * 19),
    "hex": _bounded(11 * 11 + 1),  # with the swap
    "kuhn_poker": _bounded(3, hidden=True),
    "leduc_holdem": _bounded(8, hidden=True),
    "minatar-asterix": _Facts(hidden=False),
    "minatar-breakout": _Facts(hidden=False),
    "minatar-freeway": _Facts(max_length=2_501, hidden=False),
    "minatar-seaquest": _Facts(hidden=False),
    "minatar-space_invaders": _Facts(hidden=False),
    "othello": _bounded(2 * 60),  # a pass is a move, and two passes in a row end the game
    "shogi": _bounded(512),
    "sparrow_mahjong": _bounded(30, hidden=True),
    "tic_tac_toe": _bounded(9),
}


@dataclass(frozen=True, kw_only=True)
class Pgx(GameDefaults):
    """A game by the name that `pgx.make` takes: `othello`, `go_9x9`, `minatar-breakout`."""

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.pgx_game:TensorPgx.of"
    name: str
    max_length: int | None = None
    """Steps after which an episode is cut off; default: a limit that the game itself keeps, or that play does not
    reach. A lower one excludes the device runtime."""

    @cached_property
    def spec(self) -> GameSpec:
        rules, facts = self.rules, self.rules.facts
        return GameSpec.symmetric(
            name=self.name,
            num_seats=rules.num_seats,
            observation=ObservationSpec(parts={PART: rules.part}),
            action=ActionSpec(heads={HEAD: Choice(num=rules.num_actions)}),
            max_length=facts.max_length if self.max_length is None else min(self.max_length, facts.max_length),
            zero_sum=rules.num_seats > 1,
            hidden_information=facts.hidden,
            chance=facts.chance,
        )

    def tables(self, num_tables: int) -> PgxTables:
        return PgxTables(self.spec, self.rules, num_tables)

    @property
    def rules(self) -> PgxRules:
        return rules_of(self.name)


@cache
def rules_of(name: str) -> PgxRules:
    """One for all tables of a process, so that they share what is compiled."""
    return PgxRules(name)


class PgxRules:
    """The rules of a game as compiled functions of arrays, one row per table, on the device of their arguments.

    Pgx shows a state to the player who moves. A state here is what the seat to move sees (`observation`, `legal`), that
    seat (`seat`), the player on each seat (`players`), and the rest, packed into a few arrays.
    """

    def __init__(self, name: str) -> None:
        self.env = _made(name)
        self.facts = _FACTS.get(name, _Facts())
        self.num_seats: int = self.env.num_players
        whole = jax.eval_shape(self.env.init, jax.ShapeDtypeStruct((2,), jnp.uint32))
        if self.num_seats > 2 and not hasattr(whole, "_shuffled_players"):
            raise ValueError(f"{name} has {self.num_seats} players, and Pgx does not say in which order they sit")
        self._seen, self.num_actions = whole.observation, whole.legal_action_mask.shape[0]
        leaves, self._tree = jax.tree.flatten(whole.replace(observation=(), legal_action_mask=()))
        self._leaves = [(leaf.shape, leaf.dtype) for leaf in leaves]
        self.start = jax.jit(jax.vmap(self._start))
        """draws [rows, 2] -> state: new episodes."""
        self.restart = jax.jit(jax.vmap(self._restart))
        """state, which [rows], draws [rows, 2] -> state: new episodes at some tables."""
        self.step = jax.jit(jax.vmap(self._step))
        """state, moves [rows], draws [rows, 0 or 2] -> state, reward [rows, seats], over [rows]."""
        self.seen_by_all = jax.jit(jax.vmap(self._seen_by_all))
        """state -> what each seat sees, [rows, seats, ...]."""

    @property
    def step_draws(self) -> int:
        return START_DRAWS if self.facts.chance else 0

    def draws(self, seeds: NDArray[np.uint64], step: int | NDArray[np.int64] | None) -> NDArray[np.float32]:
        """The random numbers of tables by seed, at their start (None) or in a step."""
        if step is None:
            return uniform_draws(seeds, 0, START_DRAWS)
        return uniform_draws(seeds, START_DRAWS + self.step_draws * np.asarray(step), self.step_draws)

    @property
    def part(self) -> Part:
        """Three axes are planes, the last of them the channels; anything else is a vector."""
        shape, dtype = self._seen.shape, self._seen.dtype.name
        if len(shape) == 3:
            return Planes(channels=shape[2], height=shape[0], width=shape[1], dtype=dtype)
        return Vector(size=math.prod(shape), dtype=dtype)

    def _start(self, draws: Any) -> Arrays:
        state = self.env.init(_key(draws))
        first = state.current_player
        if self.num_seats > 2:
            players = state._shuffled_players  # in the order of their turns
        else:
            players = (first + jnp.arange(self.num_seats)) % self.num_seats
        return self._packed(state, players.astype(jnp.int8))

    def _restart(self, state: Arrays, which: Any, draws: Any) -> Arrays:
        return {name: jnp.where(which, new, state[name]) for name, new in self._start(draws).items()}

    def _step(self, state: Arrays, move: Any, draws: Any) -> tuple[Arrays, Any, Any]:
        after = self.env.step(self._unpacked(state), move, _key(draws) if self.facts.chance else None)
        reward = after.rewards[state["players"].astype(jnp.int32)]
        return self._packed(after, state["players"]), reward, after.terminated | after.truncated

    def _seen_by_all(self, state: Arrays) -> Any:
        whole = self._unpacked(state)
        return jnp.stack([self._shown(self.env._observe(whole, state["players"][i])) for i in range(self.num_seats)])

    def _shown(self, observation: Any) -> Any:
        return jnp.moveaxis(observation, -1, 0) if observation.ndim == 3 else observation.reshape(-1)

    def _packed(self, state: Any, players: Any) -> Arrays:
        """Few arrays are handed over faster than many: the leaves of the state are joined by the size of a number."""
        packed: dict[str, list[Any]] = {"bytes": [], "words": []}
        for leaf in jax.tree.leaves(state.replace(observation=(), legal_action_mask=())):
            flat = jnp.reshape(leaf, -1)  # some are numbers of Python
            if flat.dtype.itemsize == 1:
                packed["bytes"].append(flat.astype(jnp.uint8))
            else:
                packed["words"].append(jax.lax.bitcast_convert_type(flat, jnp.int32))
        return {
            "observation": self._shown(state.observation),
            "legal": state.legal_action_mask,
            "seat": jnp.argmax(players == state.current_player).astype(jnp.int8),
            "players": players,
            **{name: jnp.concatenate(parts) for name, parts in packed.items()},
        }

    def _unpacked(self, state: Arrays) -> Any:
        leaves, used = [], {"bytes": 0, "words": 0}
        for shape, dtype in self._leaves:
            name, size = "bytes" if dtype.itemsize == 1 else "words", math.prod(shape)
            flat = state[name][used[name] : used[name] + size]
            used[name] += size
            leaf = flat.astype(dtype) if name == "bytes" else jax.lax.bitcast_convert_type(flat, dtype)
            leaves.append(leaf.reshape(shape))
        rest = jax.tree.unflatten(self._tree, leaves)
        # Steps compute the observation anew and never read it.
        return rest.replace(observation=jnp.zeros(self._seen.shape, self._seen.dtype), legal_action_mask=state["legal"])


def _made(name: str) -> Any:
    known = pgx.available_envs()
    if name == "bridge_bidding":
        raise ValueError(
            "bridge_bidding cannot be played: it needs files of solved deals that Pgx does not bring along"
        )
    if name not in known:
        raise ValueError(f"Pgx has no game {name!r}{nearest(name, known)}")
    return pgx.make(name)


class PgxTables(ArrayTables):
    """Tables on the CPU, wherever else JAX may compute in this process. They have a power of two of rows, so that
    tables in other numbers seldom compile the rules again."""

    def __init__(self, spec: GameSpec, rules: PgxRules, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._rules = rules
        self._cpu = jax.devices("cpu")[0]
        rows = self._rows = max(_FEWEST_ROWS, 1 << (num_tables - 1).bit_length())
        self._seeds = np.zeros(rows, np.uint64)
        self._steps = np.zeros(rows, np.int64)
        # Both functions are compiled here rather than in the middle of play.
        with jax.default_device(self._cpu):
            shapes = jax.eval_shape(rules.start, jax.ShapeDtypeStruct((rows, START_DRAWS), jnp.float32))
            nothing: Arrays = {name: jnp.zeros(one.shape, one.dtype) for name, one in shapes.items()}
            self._state: Arrays = rules.restart(nothing, np.ones(rows, np.bool_), rules.draws(self._seeds, None))
            rules.step(self._state, np.zeros(rows, np.int32), rules.draws(self._seeds, self._steps))
        if spec.chance is False:
            self.positions, self.set_positions = self._positions, self._set_positions  # a `HasPositions`

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        self._seeds[tables] = seeds
        self._steps[tables] = 0
        self._start_episodes(tables)
        which = np.zeros(self._rows, np.bool_)
        which[tables] = True
        with jax.default_device(self._cpu):
            self._state = self._rules.restart(self._state, which, self._rules.draws(self._seeds, None))
        self._show(tables)

    def step(self, actions: Actions) -> None:
        view, rules = self.view, self._rules
        tables = np.flatnonzero(~(view.over | view.truncated))
        seats = np.asarray(self._state["seat"])
        chosen = actions[0][HEAD][tables, seats[tables]]
        self._require_legal(HEAD, tables, seats[tables], chosen)
        moves = np.zeros(self._rows, np.int32)
        moves[tables] = chosen
        with jax.default_device(self._cpu):
            self._state, rewards, overs = rules.step(self._state, moves, rules.draws(self._seeds, self._steps))
        self._steps[tables] += 1
        reward, over = np.asarray(rewards)[tables], np.asarray(overs)[tables]
        view.reward[tables] = reward
        view.score[tables] += reward
        view.over[tables] = over
        view.to_act[tables] = False
        if not over.all():
            self._show(tables[~over])
        cut_off = tables[~over & (self._steps[tables] == self.spec.max_length)]
        if len(cut_off):
            view.truncated[cut_off] = True
            view.to_act[cut_off] = False
            with jax.default_device(self._cpu):
                view.observation[0][PART][cut_off] = np.asarray(rules.seen_by_all(self._state))[cut_off]

    def _positions(self, tables: IntArray) -> Tree:
        own = {"steps": self._steps, "seeds": self._seeds}
        own |= {f"state.{name}": np.asarray(array) for name, array in self._state.items()}
        return take({**self.view.named(), **own}, tables)

    def _set_positions(self, tables: IntArray, positions: Tree) -> None:
        put({**self.view.named(), "steps": self._steps, "seeds": self._seeds}, tables, positions)
        changed = {name: np.array(array) for name, array in self._state.items()}
        put(changed, tables, under("state.", positions))
        with jax.default_device(self._cpu):
            self._state = {name: jnp.asarray(array) for name, array in changed.items()}

    def _show(self, tables: IntArray) -> None:
        view = self.view
        seats = np.asarray(self._state["seat"])[tables]
        view.to_act[tables] = seats[:, None] == np.arange(self.spec.num_seats)
        view.observation[0][PART][tables, seats] = np.asarray(self._state["observation"])[tables]
        view.legal[0][HEAD][tables, seats] = np.asarray(self._state["legal"])[tables]


def uniform_draws(seeds: NDArray[np.uint64], first: int | NDArray[np.int64], number: int) -> NDArray[np.float32]:
    """[rows, number] in [0, 1), multiples of 2 ** -KEY_BITS: draws `first`, `first` + 1, ... of each seed."""
    counters = np.asarray(first)[..., None] + np.arange(number)
    whole = mix(seeds[:, None], counters) >> np.uint64(64 - KEY_BITS)
    return whole.astype(np.float32) * np.float32(2.0**-KEY_BITS)


def _key(draws: Any) -> Any:
    """A key of JAX's random numbers from two uniform numbers."""
    return (draws * 2.0**KEY_BITS).astype(jnp.uint32)


def same_memory(tensor: Any) -> Any:
    """The tensor of another library as a JAX array, without a copy (on a CPU, if it is aligned)."""
    return jax.dlpack.from_dlpack(tensor)


def require_platform(platform: str) -> None:
    """A ValueError if JAX cannot compute there."""
    try:
        jax.devices(platform)
    except RuntimeError:
        raise ValueError(
            f"JAX cannot use {platform!r} here: pip install 'jax[{platform}13]' (or 12, as PyTorch has it) adds it, "
            "or --set learner.device=cpu"
        ) from None
