"""One game between a person and a player of a run, at one table, from its first move to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ludus.data.batch import Batch
from ludus.data.records import Pair, RecordGame, Result
from ludus.data.replay import SUFFIX, SeatPlayer, encode_replay
from ludus.data.specs import Box, GameSpec
from ludus.data.trees import Tree, take
from ludus.evaluation.play.skirmish_page import Commander, SkirmishView
from ludus.evaluation.play.views import GameView
from ludus.games.bots import Rows, first_illegal
from ludus.games.game import Actions, Bot, GameBatch, GameSource, Seat, allocate_actions, lost_tables
from ludus.games.outside_bots import ExportedBot, ProgramBot
from ludus.games.recording import RecordedTables, Recording, game_version, innermost, map_name, record_innermost
from ludus.games.seat_rows import GameError
from ludus.games.tables import InnerBot
from ludus.models.policy import Policy
from ludus.store.files import atomic_write, make_folder, safe_name
from ludus.workers.player_cache import SeatedPlayer


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyOutput:
    """Value and action probabilities of one decision."""

    value: float
    """In units of reward, seen from the seat."""
    probabilities: tuple[float, ...]
    """Probability of every option of the first head; 0 for illegal ones. Empty if it takes real numbers."""


def policy_output(policy: Policy, observation: Tree, legal: Tree, state: Tree, action: Tree) -> PolicyOutput:
    """Trees of one row. `state` is the memory before the decision, `action` one that is legal: heads after
    the first may depend on it."""
    # A policy with memory takes trajectories, [T+1, B]; any other takes these too.
    leading = (1, 1)

    def in_time(tree: Tree) -> Tree:
        return {name: array.reshape(*leading, *array.shape[1:]) for name, array in tree.items()}

    never = np.zeros(leading, np.bool_)
    batch = Batch(
        observation=in_time(observation),
        legal=in_time(legal),
        action=in_time(action),
        valid=~never,
        first=never,
        state=state,
    )
    with torch.inference_mode():
        unrolled = policy.unroll(batch)
        value = float(unrolled.value.reshape(-1)[0])
        head, spec = next(iter(policy.kind.action.heads.items()))
        if isinstance(spec, Box):
            return PolicyOutput(value=value, probabilities=())
        first = unrolled.log_probs[head].exp()
    return PolicyOutput(value=value, probabilities=tuple(first.reshape(-1, first.shape[-1])[0].tolist()))


TABLE = np.array([0])
MOST_TURNS = 200
"""Turns of an analysis, evenly spread over a longer game."""


class SeatedOpponent:
    """A player of a run in one game. It has a memory for each seat, also for those that it only looks at."""

    def __init__(self, seated: SeatedPlayer, *, seed: int) -> None:
        self._seated = seated
        self._rng = np.random.default_rng(seed)
        self._memory: dict[Seat, Tree] = {}

    @property
    def model(self) -> str:
        """Id of its weights; empty for a bot."""
        return self._seated.model_name

    @property
    def thinks(self) -> bool:
        """Bots have no values, and no probabilities that they would tell."""
        return bool(self._seated.policies)

    @property
    def can_go_back(self) -> bool:
        """Whether it can be set back to an earlier turn. A bot outside of this process remembers games by itself."""
        return not isinstance(self._bot, ProgramBot | ExportedBot)

    def close(self) -> None:
        """End the program of a bot from outside."""
        if isinstance(self._bot, ProgramBot):
            self._bot.close()

    @property
    def _bot(self) -> Bot | None:
        """The bot as it was written, without what shows it the game that it was written for."""
        bot = self._seated.bot
        while isinstance(bot, InnerBot):
            bot = bot.bot
        return bot

    def memory(self) -> dict[Seat, Tree]:
        """A copy of its memory, for `recall`."""
        return {seat: {name: np.array(array) for name, array in tree.items()} for seat, tree in self._memory.items()}

    def recall(self, memory: Mapping[Seat, Tree]) -> None:
        """Go back to this memory."""
        self._memory = dict(memory)

    def decide(self, tables: GameBatch, seats: Sequence[Seat]) -> dict[Seat, tuple[Tree, PolicyOutput | None]]:
        """Actions of the seats that are to act at table 0: trees of one row."""
        if self._seated.bot is None:
            return {seat: self._consider(tables, seat) for seat in seats}
        decided: dict[Seat, tuple[Tree, PolicyOutput | None]] = {}
        for own in tables.spec.seats_of_kind:
            here = [seat for seat in seats if seat in own]
            if here:
                actions = self._seated.bot.act(tables, np.zeros(len(here), np.int64), np.array(here), self._rng)
                decided |= {seat: (take(actions, slice(row, row + 1)), None) for row, seat in enumerate(here)}
        return decided

    def look(self, tables: GameBatch, seat: Seat) -> PolicyOutput | None:
        """Its evaluation of another player's decision. Call it once for each: it remembers what it sees."""
        return self._consider(tables, seat)[1] if self.thinks else None

    def _consider(self, tables: GameBatch, seat: Seat) -> tuple[Tree, PolicyOutput]:
        kind, column = tables.spec.seats[seat], tables.spec.column_of_seat[seat]
        policy = self._seated.policies[kind]
        observation = take(tables.view.observation[kind], (TABLE, column))
        legal = take(tables.view.legal[kind], (TABLE, column))
        before = self._memory.get(seat) or policy.initial_state(1)
        uniforms = self._rng.random((1, policy.num_draws), np.float32)
        acted = policy.act(observation, legal, before, uniforms, greedy=self._seated.greedy, want_value=False)
        self._memory[seat] = acted.state
        return acted.action, policy_output(policy, observation, legal, before, acted.action)


class WrongMove(ValueError):  # noqa: N818
    """A move that cannot be made; the game is as it was."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    score: tuple[float, ...]
    """By team."""
    recording: Recording
    decisions: tuple[int, ...]
    """By seat."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _PersonsTurn:
    """A moment at which the person had to decide, with all that is needed to go back to it."""

    step: int
    """Steps of the table before it."""
    judged: PolicyOutput | None
    """The judge's evaluation of the person's place."""
    options: tuple[str, ...]
    """Names of the options."""
    yours: PolicyOutput | None
    its: dict[str, Any] | None
    latest: int | None
    decisions: tuple[int, ...]
    memories: tuple[dict[Seat, Tree], ...]


class PlaySession:
    """A game in which the person has one seat and the agent all others. `judge` evaluates the person's position at
    every turn; without one the agent does, if it has values."""

    def __init__(
        self,
        source: GameSource,
        view: GameView,
        agent: SeatedOpponent,
        seat: Seat,
        *,
        seed: int,
        judge: SeatedOpponent | None = None,
    ) -> None:
        self._view = view
        self._agent = agent
        self._judge = judge
        self.seat = seat
        self._seed = np.array([seed], np.uint64)
        self._turns: list[_PersonsTurn] = []
        self._moves: list[int] = []
        """The option that the person chose at each turn; empty in real time."""
        self._played: list[Actions] = []
        """The actions of every step, if moves can be taken back."""
        self._step_number = 0
        self.ended: Ended | None = None
        self._recording: Recording | None = None
        self._tables = record_innermost(source, self._keep).tables(1)
        self._plain = _game_itself(self._tables)
        self._actions = allocate_actions(self.spec, 1)
        self._decisions = [0] * self.spec.num_seats
        self._latest: int | None = None
        self._yours: PolicyOutput | None = None
        """The agent's evaluation of the person's place."""
        self._its: dict[str, Any] | None = None
        """The agent's evaluation of its own latest decision, as it is shown."""
        self._commander = Commander(self._plain, seat) if isinstance(view, SkirmishView) else None
        self._missed = ""
        self._ordered = False
        try:
            self._tables.reset(TABLE, self._seed)
            self._go_on(None)
        except BaseException:
            self._tables.close()
            raise

    @property
    def spec(self) -> GameSpec:
        return self._tables.spec

    @property
    def started(self) -> bool:
        """The person has decided something; to let time go by is nothing yet."""
        return self._ordered if self._view.real_time else self._decisions[self.seat] > 0

    def close(self) -> None:
        self._tables.close()
        self._agent.close()

    # --- playing ---

    def options(self) -> dict[int, str]:
        """The person's legal options and their names; in real time there are orders instead."""
        if self.ended is not None or self._view.real_time:
            return {}
        names = self._view.options(self._plain, self.seat)
        mask = self._rows().mask(self._head)[0]
        return {option: names[option] for option in np.flatnonzero(mask).tolist()}

    def move(self, option: int) -> None:
        """Make the person's move, then the agent's moves until it is the person's turn again."""
        legal = self.options()
        if self.ended is not None:
            raise WrongMove("the game is over")
        if option not in legal:
            raise WrongMove(f"option {option} is not legal; legal are {', '.join(map(str, legal))}")
        self._moves.append(option)
        self._go_on({self._head: np.array([option], np.int32)})

    @property
    def no_undo(self) -> str:
        """Why moves of this game cannot be taken back; empty if they can."""
        spec = self.spec
        if self._view.real_time:
            return "time does not go back in a real-time game"
        if spec.hidden_information or spec.chance:
            return "a move would be taken back with what it has revealed"
        if not spec.repeatable:
            return f"{spec.name} cannot be played again from its first position"
        return "" if self._agent.can_go_back else "the opponent is a program that remembers the game by itself"

    @property
    def can_undo(self) -> bool:
        """Whether there is a move to take back now."""
        return self.ended is None and len(self._turns) > 1 and not self.no_undo

    def undo(self) -> None:
        """Take back the person's latest move and the replies to it. The table plays the moves before it again."""
        if self.no_undo:
            raise WrongMove(f"no undo: {self.no_undo}")
        if not self.can_undo:
            raise WrongMove("the game is over" if self.ended is not None else "there is no move of yours to take back")
        back = self._turns[-2]
        self._tables.reset(TABLE, self._seed)
        for actions in self._played[: back.step]:
            self._tables.step(actions)
        view = self._tables.view
        if reason := lost_tables(self._tables).get(0):
            raise GameError(f"{self.spec.name}: the table was lost: {reason}")
        if view.over[0] or view.truncated[0] or not view.to_act[0, self.seat]:
            raise GameError(f"{self.spec.name} did not play as before: after {back.step} steps it is not your turn")
        del self._turns[-1], self._moves[-1], self._played[back.step :]
        self._step_number = back.step
        self._decisions = list(back.decisions)
        self._latest, self._its, self._yours = back.latest, back.its, back.yours
        for agent, memory in zip(self._agents, back.memories, strict=True):
            agent.recall(memory)

    def tick(self, orders: Sequence[Any]) -> None:
        """In a real-time game: take orders, and let one tick pass."""
        if self._commander is None:
            raise WrongMove(f"{self.spec.name} is not played in real time")
        if self.ended is not None:
            raise WrongMove("the game is over")
        try:
            self._commander.give(orders)
        except ValueError as error:
            raise WrongMove(str(error)) from error
        self._ordered = self._ordered or bool(orders)
        kind = self.spec.kinds[self.spec.seats[self.seat]]
        action, self._missed = self._commander.decide(kind.action.arrays)
        self._go_on(action)

    def _go_on(self, action: Tree | None) -> None:
        """Until the person must decide, or the game is over."""
        view = self._tables.view
        if action is not None:
            illegal = first_illegal(self._rows(), action)
            if illegal is not None:
                raise WrongMove(illegal[1])
        while not (view.over[0] or view.truncated[0]):
            acting = np.flatnonzero(view.to_act[0]).tolist()
            if self.seat in acting and action is None:
                self._begin_turn()
                return
            self._step(acting, action)
            action = None
        assert self._recording is not None
        self.ended = Ended(
            score=tuple(view.score[0].tolist()), recording=self._recording, decisions=tuple(self._decisions)
        )

    def _begin_turn(self) -> None:
        self._yours = self._agent.look(self._tables, self.seat)
        judged = self._yours if self._judge is None else self._judge.look(self._tables, self.seat)
        self._turns.append(
            _PersonsTurn(
                step=self._step_number,
                judged=judged,
                options=() if self._view.real_time else tuple(self._view.options(self._plain, self.seat)),
                yours=self._yours,
                its=self._its,
                latest=self._latest,
                decisions=tuple(self._decisions),
                memories=() if self.no_undo else tuple(agent.memory() for agent in self._agents),
            )
        )

    @property
    def _agents(self) -> list[SeatedOpponent]:
        return [self._agent] if self._judge is None else [self._agent, self._judge]

    def _step(self, acting: Sequence[Seat], action: Tree | None) -> None:
        others = [seat for seat in acting if seat != self.seat]
        decided = self._agent.decide(self._tables, others)
        chosen: dict[Seat, Tree] = {seat: tree for seat, (tree, _) in decided.items()}
        for seat, (tree, output) in decided.items():
            names = self._view.options(self._plain, seat)
            told = None if output is None else self._told(output, names, with_value=True)
            self._its = None if told is None else told | {"chose": _first_choice(tree)}
        if action is not None:
            chosen[self.seat] = action
        for seat, tree in chosen.items():
            kind, column = self.spec.seats[seat], self.spec.column_of_seat[seat]
            for head, array in self._actions[kind].items():
                array[0, column] = tree[head][0]
            self._decisions[seat] += 1
        if not self.no_undo:
            self._played.append(tuple({head: np.array(array) for head, array in own.items()} for own in self._actions))
        self._step_number += 1
        self._tables.step(self._actions)
        if reason := lost_tables(self._tables).get(0):
            raise GameError(f"{self.spec.name}: the table was lost: {reason}")
        if len(chosen) == 1:
            self._latest = _first_choice(*chosen.values())

    # --- what is shown ---

    def show(self, *, thoughts: bool = False) -> dict[str, Any]:
        """Everything that the person may know, as plain values. After the end the whole table is shown."""
        shown: dict[str, Any] = {
            "game": self.spec.name,
            "seat": self.seat,
            "team": self.spec.teams[self.seat],
            "over": self.ended is not None,
            "score": None if self.ended is None else list(self.ended.score),
            "decisions": sum(self._decisions),
            "real_time": self._view.real_time,
            "options": [{"option": option, "name": name} for option, name in self.options().items()],
            "view": self._view.show(self._plain, self._eyes, self._latest),
            "thoughts": self._told_thoughts() if thoughts else None,
            "can_undo": self.can_undo,
            "no_undo": self.no_undo,
            "evaluation": self._evaluation(),
            "analysis": self._analysis() if thoughts or self.ended is not None else None,
        }
        if self._commander is not None:
            shown |= {"waiting": self._commander.waiting, "missed": self._missed}
        return shown

    def _evaluation(self) -> dict[str, Any] | None:
        """The expected score of the person's team now, as the judge sees it from the person's place. None if nobody has
        values, or if they come from a critic that sees more than the person."""
        value: float | None = None
        if self._judges and self.ended is not None:
            value = self.ended.score[self.spec.teams[self.seat]]
        elif self._judges and not self._critic_sees_more:
            value = self._value(self._turns[-1])
        return None if value is None else {"value": round(value, 4), "range": self._view.score_range}

    def _analysis(self) -> dict[str, Any] | None:
        """The turns of the person up to now: the expected score at each, the move, and the move that the judge thinks
        most likely. `worst` is the place in `turns` of another move after which the value fell most."""
        if not self._judges or (self.ended is None and self._critic_sees_more):
            return None
        every = -(-len(self._turns) // MOST_TURNS)
        turns = [self._analysed(number) for number in range(0, len(self._turns), every)]
        end = None
        if self.ended is not None:
            end = {"step": self._step_number, "value": self.ended.score[self.spec.teams[self.seat]]}
        values = [turn["value"] for turn in turns] + ([end["value"]] if end is not None else [])
        falls = [
            before - after if turn.get("played") != turn.get("best") else 0.0
            for turn, (before, after) in zip(turns, pairwise(values), strict=False)
        ]
        worst = int(np.argmax(falls)) if falls and max(falls) > 0 else None
        return {"range": self._view.score_range, "turns": turns, "end": end, "worst": worst}

    def _analysed(self, number: int) -> dict[str, Any]:
        turn = self._turns[number]
        assert turn.judged is not None
        told: dict[str, Any] = {"turn": number + 1, "step": turn.step, "value": round(self._value(turn), 4)}
        if self._view.real_time:  # a decision is more than one choice, and most are to let things go on
            return told
        probabilities = turn.judged.probabilities
        best = int(np.argmax(probabilities))
        told |= {"best": turn.options[best], "best_p": round(probabilities[best], 4)}
        if number < len(self._moves):
            move = self._moves[number]
            told |= {"played": turn.options[move], "played_p": round(probabilities[move], 4)}
        return told

    def _value(self, turn: _PersonsTurn) -> float:
        assert turn.judged is not None
        return within(turn.judged.value, self._view.score_range)

    @property
    def _judges(self) -> bool:
        """Whether somebody evaluates the person's turns."""
        return bool(self._turns) and self._turns[0].judged is not None

    @property
    def _critic_sees_more(self) -> bool:
        return bool(self.spec.kinds[self.spec.seats[self.seat]].observation.critic)

    def written(self, names: Sequence[str] = ()) -> str:
        """For a terminal. `names`: the players, by seat."""
        return self._view.written(self._view.show(self._plain, self._eyes, self._latest), names)

    @property
    def _eyes(self) -> Seat | None:
        """The seat whose observation is shown; None: everything."""
        return self.seat if self.ended is None else None

    def _told_thoughts(self) -> dict[str, Any]:
        """The evaluations of the agent, without hidden information: its evaluation of its own position waits for
        the end if seats see different things, and so does the value of a critic that sees more than its seat."""
        yours = None
        if self._yours is not None and self.ended is None:
            names = self._view.options(self._plain, self.seat)
            yours = self._told(self._yours, names, with_value=not self._critic_sees_more)
        shows_its = self.ended is not None or not self._view.hides
        return {"thinks": self._agent.thinks, "yours": yours, "its": self._its if shows_its else None}

    # --- details ---

    @property
    def _head(self) -> str:
        """The first head: of a game with one choice a turn, its only one."""
        return next(iter(self.spec.kinds[self.spec.seats[self.seat]].action.heads))

    def _rows(self) -> Rows:
        return Rows.of(self._tables, TABLE, np.array([self.seat]))

    def _keep(self, recording: Recording) -> None:
        self._recording = recording

    def _told(self, output: PolicyOutput, names: Sequence[str], *, with_value: bool) -> dict[str, Any]:
        return {
            "value": round(within(output.value, self._view.score_range), 4) if with_value else None,
            "options": [
                {"option": option, "name": names[option] if option < len(names) else str(option), "p": round(p, 4)}
                for option, p in enumerate(output.probabilities)
            ],
        }


def within(value: float, score_range: tuple[float, float] | None) -> float:
    """A network's value as a score that the game can end with."""
    return value if score_range is None else min(max(value, score_range[0]), score_range[1])


def _first_choice(action: Tree) -> int:
    return int(next(iter(action.values())).flat[0])


def _game_itself(tables: GameBatch) -> GameBatch:
    """The innermost game's tables: what is wrapped around them changes what a player sees, not the table."""
    around: Any = tables
    while not isinstance(around, RecordedTables):
        around = around.game
    return around.game


REPLAYS = "replays"
"""The folder of replays in a run folder."""


@dataclass(frozen=True, kw_only=True)
class GameSeats:
    """The players on the seats of a person's game."""

    person: str
    opponent: str
    """As the ledger knows it."""
    model: str
    """Id of the opponent's weights; empty for a bot."""
    seat: int
    """The person's."""

    def names(self, spec: GameSpec) -> list[str]:
        """By seat."""
        return [self.person if seat == self.seat else self.opponent for seat in range(spec.num_seats)]

    def sides(self, spec: GameSpec) -> tuple[tuple[str, ...], ...]:
        """Per team: one player, or one for each seat of a team that the two share."""
        names = self.names(spec)
        teams = [tuple(names[seat] for seat in seats) for seats in spec.seats_of_team]
        return tuple(team[:1] if len({*team}) == 1 else team for team in teams)


def finished(spec: GameSpec, line: GameSeats, ended: Ended) -> RecordGame:
    """The game with its result."""
    sides, score = line.sides(spec), ended.score
    models = tuple(",".join("" if player == line.person else line.model for player in players) for players in sides)
    return RecordGame(
        sides=sides,
        result=Result(
            match_id=0,
            episodes=1,
            steps=ended.recording.num_steps,
            decisions=tuple(sum(ended.decisions[seat] for seat in seats) for seats in spec.seats_of_team),
            pairs=tuple(
                Pair(
                    side=one,
                    other=other,
                    wins=int(score[one] > score[other]),
                    draws=int(score[one] == score[other]),
                    losses=int(score[one] < score[other]),
                )
                for one in range(len(sides))
                for other in range(one + 1, len(sides))
            ),
            score_sum=score,
            score_square_sum=tuple(one**2 for one in score),
            first_models=models,
            last_models=models,
        ),
    )


def abandoned(spec: GameSpec, line: GameSeats, reason: str) -> RecordGame:
    """The game without one."""
    return RecordGame(sides=line.sides(spec), void=reason)


def write_replay(
    folder: Path,
    source: GameSource,
    address: tuple[str, Mapping[str, Any]],
    line: GameSeats,
    ended: Ended,
    match_id: int,
) -> Path:
    """Keeps the game beside the run; `address` is how the game itself is called, and its options."""
    inner = innermost(source)
    replay = ended.recording.replay(
        game=address[0],
        options=address[1],
        version=game_version(inner),
        map_name=map_name(inner),
        seats=tuple(SeatPlayer(name, "" if name == line.person else line.model) for name in line.names(inner.spec)),
        teams=inner.spec.teams,
    )
    make_folder(folder / REPLAYS)
    path = folder / REPLAYS / f"human-{safe_name(line.opponent, 'a player')}-{match_id:06d}{SUFFIX}"
    atomic_write(path, encode_replay(replay))
    return path
