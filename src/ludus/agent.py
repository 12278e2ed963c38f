"""A player as an agent for your own loop: it takes plain observations and returns actions of the game. The player comes
from a run, which needs PyTorch, or from an exported file, which needs onnxruntime alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

import numpy as np

from ludus.data.checks import unknown
from ludus.data.specs import ArraySpec, GameSpec, ObservationSpec, SeatKind
from ludus.data.trees import Array, IntArray, Tree, allocate, put
from ludus.games.exported import ExportedFileError, ExportedPlayer, is_exported
from ludus.games.game import Action, Actions, Bot, Legal, Observation, Seat, TableView
from ludus.games.seat_rows import GameError, SeatRows

if TYPE_CHECKING:
    from ludus.experiment import Experiment
    from ludus.export.files import Exported
    from ludus.store.run_folder import RunFolder
    from ludus.workers.player_cache import SeatedPlayer

Weights = Literal["average", "live"]
State = Tree  # the memory of an agent, one row per observation; empty for an agent without memory
BEST = "main@best"


def load_agent(
    run: str | PathLike[str],
    player: str = BEST,
    *,
    weights: Weights = "average",
    greedy: bool = False,
    seed: int = 0,
    seat: Seat | None = None,
    trust: bool = False,
) -> Agent:
    """Load a player of a run, or an exported file, as an agent. A run imports the code that it names; a file does not.

    Args:
        run: a `Run`, the path of its folder, or a file of `ludus export`, such as `agent.onnx`.
        player: a learning player (`main`), a snapshot (`main.3`), a tag (`main@best`), a model (`main:0:12`)
            or a bot of the game (`alpha_beta_2`). A file has one player: leave it out.
        weights: which weights a learning player uses: the exponential average or the live ones. Snapshots,
            models and files use the weights that they were frozen with.
        greedy: always take the most probable action instead of sampling.
        seed: of everything that the agent draws.
        seat: the seat that it plays. Needed only where seats see or do different things; `Agent.act` can
            name another one.
        trust: import code even if it lies inside of the run folder.
    """
    if is_exported(run):
        exported = ExportedPlayer(run, greedy=greedy)
        if player not in (BEST, exported.player):
            raise ExportedFileError(f"{exported.path} holds {exported.player!r} alone, not {player!r}")
        return Agent(exported, seed=seed, seat=seat)
    from ludus.config import ConfigError
    from ludus.runtime.assemble import load_players, load_state
    from ludus.store.run_folder import RunFolder
    from ludus.workers.player_cache import played_weights

    if weights not in get_args(Weights):
        raise ConfigError(unknown("weights", str(weights), get_args(Weights)))
    folder = RunFolder.open(Path(run), trusted=trust or None)
    now, league = load_state(folder)
    (seated,) = load_players(now, folder, league, [player], weights=weights, greedy=greedy).values()
    if seated.simulations is not None:
        raise ConfigError(
            f"{player}: an agent sees observations, and a search needs the table itself; `Run.evaluate` and "
            "`ludus play` have one"
        )
    used = played_weights(league, folder.models, player, weights)
    return Agent(_RunPlayer(folder, now, player, seated, weights=used), seed=seed, seat=seat)


class AgentPlayer(Protocol):
    """Interface of what decides for an agent."""

    @property
    def player(self) -> str: ...
    @property
    def model(self) -> str:
        """The id of its weights; empty for a bot."""

    @property
    def weights(self) -> str | None: ...
    @property
    def spec(self) -> GameSpec: ...
    @property
    def played(self) -> GameSpec:
        """`spec` with one kind of seat for each policy of the player."""

    def state_arrays(self, kind: int) -> Mapping[str, ArraySpec]:
        """The memory of one row of a kind of `played`."""

    def decide(
        self, kind: int, seats: Sequence[Seat], seen: Tree, masks: Tree, state: State, rng: np.random.Generator
    ) -> tuple[Tree, State]:
        """Actions by head and the memory after them, for rows of one kind of `played`."""


class Agent:
    """Plays any seat of its game. Make one with `load_agent`.

        agent = ludus.load_agent("runs/connect_four-001", "main@best")
        action = agent.act(observation, legal)

    An agent remembers what it has seen since `reset`, for each seat apart. Call `reset` before every episode.
    """

    def __init__(self, decider: AgentPlayer, *, seed: int = 0, seat: Seat | None = None) -> None:
        self.player = decider.player
        """Its name in the run."""
        self.weights = decider.weights
        """The weights that it plays with, "live" or "average"; None for a bot."""
        self.spec = decider.spec
        """The facts of the game that it plays."""
        self._decider = decider
        self._played = decider.played
        self._rng = np.random.default_rng(seed)
        self._memory: dict[Seat | None, State] = {}
        self._rows: dict[Seat, tuple[SeatRows, Tree, Tree]] = {}
        self.seat = seat
        """The seat that it plays, unless `act` names another one."""
        if seat is not None:
            self._kind_of(seat)

    @property
    def model(self) -> str:
        """The id of its weights; empty for a bot."""
        return self._decider.model

    def __repr__(self) -> str:
        model = f"{self.model}, {self.weights} weights" if self.model else "bot"
        return f"<Agent {self.player} ({model}) of {self.spec.name}>"

    def reset(self) -> None:
        """Forget everything: a new episode begins."""
        self._memory.clear()

    def act(self, observation: Observation, legal: Legal | None = None, *, seat: Seat | None = None) -> Action:
        """Choose an action for one seat.

        Args:
            observation: as the game gives it: part name to array, or the array of a single part.
            legal: head name to boolean mask, or the mask of a single head; None: everything is legal.
            seat: whose turn it is, where the agent plays more than one seat.

        Returns:
            What `Game.step` takes: an int for a single head, a float32 array for a single `Box`, else head name to
            int or array.

        Raises:
            GameError: a part or a mask does not fit; the message names the expected shape.
        """
        seat = self.seat if seat is None else seat
        kind, place = self._kind_of(seat)
        rows, seen, masks = self._row_of(place)
        rows.write_observation(observation)
        rows.write_legal(legal)
        actions, after = self._decide(kind, [place], seen, masks, self._memory.get(seat))
        self._memory[seat] = after
        return _plain(actions, self._played.kinds[kind])

    def act_batch(
        self,
        observations: Mapping[str, Array] | Array,
        legal: Mapping[str, Array] | Array | None = None,
        state: State | None = None,
        seats: Seat | Sequence[Seat] | None = None,
    ) -> tuple[Any, State]:
        """Choose actions for many rows, each of another episode or seat.

        Args:
            observations: as for `act`, every array with a leading axis of rows.
            legal: as for `act`, with the same leading axis.
            state: what the call before returned for these rows; None: all of them begin an episode. A row
                that begins one later is set to 0.
            seats: the seat of all rows or of each; all must see and do the same.

        Returns:
            The actions, an array [rows, ...] for a single head, else head name to array; and the state to pass
            to the next call.
        """
        places = [self.seat] if seats is None else [int(seat) for seat in np.atleast_1d(seats)]
        kind, where = self._kind_of(places[0])[0], self._where(places[0])
        for place in places[1:]:
            if self._kind_of(place)[0] != kind:
                raise GameError(f"{self._where(place)} is of another kind than seat {places[0]}: ask apart")
        spec = self._played.kinds[kind]
        given = _as_tree(observations, spec.observation.parts, f"{where}: observations")
        count = _num_rows(given, spec, where)
        seen = allocate(spec.observation.arrays, (count,))
        _fill(seen, given, allocate_without_critic(spec), f"{where}: part")
        masks = {name: np.ones((count, *one.shape), np.bool_) for name, one in spec.legal_arrays.items()}
        if legal is not None:
            asked = _as_tree(legal, spec.legal_arrays, f"{where}: legal")
            wanted = {name: one for name, one in spec.legal_arrays.items() if name in asked}
            _fill(masks, asked, wanted, f"{where}: legal mask of head")
        if len(places) not in (1, count):
            raise GameError(f"{self.spec.name}: {len(places)} seats for {count} rows")
        seated = [place or 0 for place in (places * count if len(places) == 1 else places)]
        actions, after = self._decide(kind, seated, seen, masks, state)
        single = len(spec.action.heads) == 1
        return (next(iter(actions.values())) if single else actions), after

    def export(self, to: str | PathLike[str], *, logits: bool = False, value: bool = False) -> Exported:
        """Write the agent as ONNX, with a manifest and a model card beside it, and check that the file decides as the
        agent does. See `docs/take-an-agent-out.md`.

        Args:
            to: a file that ends in `.onnx`, or a folder.
            logits: add the masked logits of every head to the outputs.
            value: add the critic's estimate to the outputs.
        """
        if not isinstance(self._decider, _RunPlayer):
            raise ExportedFileError(f"{self.player!r} comes from a file already: copy it")
        from ludus.export.files import export_player

        source = self._decider
        return export_player(source.folder, self.player, Path(to), weights=source.asked, logits=logits, value=value)

    def _decide(
        self, kind: int, seats: Sequence[Seat], seen: Tree, masks: Tree, state: State | None
    ) -> tuple[Tree, State]:
        count, arrays = len(seats), self._decider.state_arrays(kind)
        before = allocate(arrays, (count,)) if state is None else state
        for name, one in arrays.items():
            if name not in before or before[name].shape != (count, *one.shape):
                raise GameError(
                    f"{self.spec.name}: state {name!r}: expected {_shown(one, count)}, got "
                    f"{_described(before.get(name))}"
                )
        return self._decider.decide(kind, seats, seen, masks, before, self._rng)

    def _kind_of(self, seat: Seat | None) -> tuple[int, Seat]:
        """The kind of a seat, and a seat of that kind."""
        if seat is None:
            if len(self._played.kinds) > 1:
                names = [f"{n} ({self._played.kinds[kind].name})" for n, kind in enumerate(self._played.seats)]
                raise GameError(f"{self.spec.name}: say which seat acts, seat={' or '.join(names)}")
            return 0, 0
        is_number = isinstance(seat, int | np.integer) and not isinstance(seat, bool)
        if not is_number or not 0 <= seat < self.spec.num_seats:
            raise GameError(f"{self.spec.name} has no seat {seat!r}; seats are 0 to {self.spec.num_seats - 1}")
        return self._played.seats[seat], int(seat)

    def _row_of(self, seat: Seat) -> tuple[SeatRows, Tree, Tree]:
        """One row of arrays for a seat, and the checks of what is written into it."""
        if seat not in self._rows:
            kind = self._played.kinds[self._played.seats[seat]]
            seen, masks = allocate(kind.observation.arrays, (1,)), allocate(kind.legal_arrays, (1,))
            # The parts for critics exist only in training.
            shown = replace(kind, observation=ObservationSpec(parts=kind.observation.parts))
            first = {name: array[0, ...] for name, array in seen.items()}
            legal = {name: array[0, ...] for name, array in masks.items()}
            self._rows[seat] = SeatRows(self._where(seat), shown, first, legal), seen, masks
        return self._rows[seat]

    def _where(self, seat: Seat | None) -> str:
        return self.spec.name if seat is None else f"{self.spec.name}, seat {seat}"


class _RunPlayer:
    """A player of a run as an `AgentPlayer`."""

    def __init__(
        self, folder: RunFolder, experiment: Experiment, player: str, seated: SeatedPlayer, *, weights: str | None
    ) -> None:
        from ludus.games.outside_bots import with_bots
        from ludus.workers.inference import InlineInference
        from ludus.workers.player_cache import FixedPlayers

        self.folder = folder
        self.player = player
        self.weights = weights
        self.asked: Weights = "live" if weights == "live" else "average"
        self.model = seated.model_name
        self.spec: GameSpec = experiment.game.spec
        self._bots = with_bots(experiment.game, experiment.bots).bots()
        self._bot = None if seated.bot is None else self._bots[player]
        # A bot knows the kinds of the game itself.
        self.played = self.spec if self._bot is not None else experiment.grouped_game.spec
        self._policies = seated.policies
        draws = [policy.num_draws for policy in seated.policies]
        self._inference = InlineInference(FixedPlayers({player: seated}), draws)

    def state_arrays(self, kind: int) -> Mapping[str, ArraySpec]:
        return {} if self._bot is not None else self._policies[kind].state_arrays

    def decide(
        self, kind: int, seats: Sequence[Seat], seen: Tree, masks: Tree, state: State, rng: np.random.Generator
    ) -> tuple[Tree, State]:
        from ludus.workers.inference import ActingRows, Group

        if self._bot is not None:
            return self._ask_bot(self._bot, kind, seats, seen, masks, rng), {}
        count = len(seats)
        answer = self._inference.act(
            ActingRows(
                kind=kind,
                groups=(Group(self.player, 0, count, want_value=False),),
                observation=seen,
                legal=masks,
                state=state,
                uniforms=rng.random((count, self._policies[kind].num_draws), np.float32),
            )
        )
        return answer.acted.action, answer.acted.state

    def _ask_bot(
        self, bot: Bot, kind: int, seats: Sequence[Seat], seen: Tree, masks: Tree, rng: np.random.Generator
    ) -> Tree:
        tables = _SeenTables(self.played, len(seats))
        rows, columns = np.arange(len(seats)), np.array([self.played.column_of_seat[s] for s in seats])
        put(tables.view.observation[kind], (rows, columns), seen)
        put(tables.view.legal[kind], (rows, columns), masks)
        tables.view.to_act[rows, list(seats)] = True
        try:
            return bot.act(tables, rows, np.asarray(seats), rng)
        except (AttributeError, NotImplementedError, TypeError) as error:
            raise GameError(
                f"bot {self.player!r} of {self.spec.name} could not act on an observation alone "
                f"({type(error).__name__}: {error}); `Run.evaluate` plays bots that look at the table itself. "
                f"Bots: {', '.join(self._bots)}"
            ) from error


class _SeenTables:
    """Tables that hold only the observations of the seats that act: enough for most bots."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        self.spec = spec
        self.num_tables = num_tables
        self.view = TableView.allocate(spec, num_tables)

    def reset(self, tables: IntArray, seeds: Any) -> None:
        raise NotImplementedError

    def step(self, actions: Actions) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing to release."""


def allocate_without_critic(kind: SeatKind) -> Mapping[str, ArraySpec]:
    """The arrays of an observation outside of training."""
    return ObservationSpec(parts=kind.observation.parts).arrays


def _as_tree(given: Any, known: Mapping[str, Any], what: str) -> Mapping[str, Array]:
    if isinstance(given, Mapping):
        return {name: np.asarray(array) for name, array in given.items()}
    if len(known) != 1:
        raise GameError(f"{what}: expected a mapping with {', '.join(known)}, got {_described(given)}")
    return {next(iter(known)): np.asarray(given)}


def _num_rows(given: Mapping[str, Array], kind: SeatKind, where: str) -> int:
    for name, one in allocate_without_critic(kind).items():
        array = given.get(name)
        if array is not None and array.ndim == len(one.shape) + 1:
            return len(array)
        raise GameError(f"{where}: part {name!r}: expected {_shown(one, None)}, got {_described(array)}")
    raise GameError(f"{where}: the game shows nothing")


def _fill(into: Tree, given: Mapping[str, Array], wanted: Mapping[str, ArraySpec], what: str) -> None:
    """Copy the arrays. Raises GameError for the first one that does not fit, with the expected shape."""
    for name, one in wanted.items():
        array, target = given.get(name), into[name]
        fits = array is not None and array.shape == target.shape
        if not fits or not np.can_cast(array.dtype, one.dtype, "same_kind"):  # type: ignore[union-attr]
            raise GameError(f"{what} {name!r}: expected {_shown(one, len(target))}, got {_described(array)}")
        target[...] = array
    for name in given:
        if name not in wanted:
            raise GameError(f"{what} {name!r} is unknown; there are {', '.join(wanted)}")


def _shown(one: ArraySpec, rows: int | None) -> str:
    leading = "rows" if rows is None else str(rows)
    return f"{one.dtype}[{', '.join([leading, *map(str, one.shape)])}]"


def _described(value: Any) -> str:
    if value is None:
        return "nothing"
    return f"{value.dtype}{list(value.shape)}" if isinstance(value, np.ndarray) else repr(value)[:80]


def _plain(actions: Tree, kind: SeatKind) -> Action:
    """The action of the only row, as `Game.step` takes it."""
    row = {name: array[0].tolist() if array.ndim == 1 else array[0].copy() for name, array in actions.items()}
    only = next(iter(row.values()))
    return only if len(kind.action.heads) == 1 and (isinstance(only, int) or kind.action.boxes) else row
