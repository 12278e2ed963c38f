"""FightingICE (DareFightingICE) through pyftg's protocol: two fighters, one seat each, sixty frames a second.

The game is the user's own; it runs beside us with `--pyftg-mode`, and plays one match at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from importlib import import_module
from typing import Any

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.tree_game import TreeState
from ludus.games.adapters.fightingice_address import probe
from ludus.games.adapters.fightingice_commands import COMMANDS, HELD, OBSERVATION, keys_of, look
from ludus.games.bots import RandomBot
from ludus.games.game import Bot, GameBatch, Seat, Turn
from ludus.games.lift import LiftedBatch
from ludus.games.seat_rows import GameError

CHARACTERS = ("GARNET", "ZEN", "LUD", "NEZ")
_USUAL_HP, _USUAL_ENERGY = 400.0, 300.0


@dataclass(frozen=True, kw_only=True)
class FightingICE:
    """A game of several rounds. A decision names a command, whose keys take some frames; a seat decides again
    when its fighter can be told something new."""

    host: str = "127.0.0.1"
    ports: tuple[int, ...] = (31415,)
    """One running game for each table."""
    characters: tuple[str, str] = ("ZEN", "ZEN")
    rounds: int = 3
    """As the game was started with (-r); for the length of an episode only."""
    round_frames: int = 3_600
    """As the game was started with (-f)."""
    frames_per_decision: int = 6
    """Least frames between two decisions of a seat; walking, crouching and guarding go on for as long."""
    delayed: bool = True
    """Seats see frames of a quarter of a second ago (15 frames), as people do; else the present one."""
    time_limit_s: float = 30.0
    """How long the game may take to start or to show a frame."""

    def __post_init__(self) -> None:
        for name in ("rounds", "round_frames", "frames_per_decision", "time_limit_s"):
            if getattr(self, name) <= 0:
                raise GameError(f"{name} must be above 0, got {getattr(self, name)}")
        wrong = [name for name in self.characters if name not in CHARACTERS]
        if wrong:
            raise GameError(f"characters must be of {', '.join(CHARACTERS)}, got {wrong[0]!r}")
        if not self.ports:
            raise GameError("ports must name at least one running game")

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="fightingice",
            num_seats=2,
            observation=ObservationSpec(parts={"fight": Vector(size=OBSERVATION)}),
            action=ActionSpec(heads={"command": Choice(num=len(COMMANDS), masked=False)}),
            # A round goes on for a while after its last frame, and every step takes a frame at least.
            max_length=self.rounds * (self.round_frames + 300),
            reward_is_score=False,
            timed=True,
        )

    def tables(self, num_tables: int) -> GameBatch:
        if num_tables > len(self.ports):
            raise GameError(f"{self._too_few(num_tables)} (or actor.num_tables)")
        return LiftedBatch(self.spec, [Fight(self, port) for port in self.ports[:num_tables]])

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot()}

    def tree(self) -> TreeState | None:
        return None

    def missing(self, num_tables: int) -> list[str]:
        found = [self._too_few(num_tables)] if num_tables > len(self.ports) else []
        for port in self.ports[:num_tables]:
            try:
                probe(self.host, port, self.time_limit_s)
            except GameError as error:
                found.append(str(error))
        return found

    def _too_few(self, num_tables: int) -> str:
        return (
            f"{num_tables} tables, but ports names {len(self.ports)} running games, and each plays one "
            "match at a time: start more, and set ports=31415,31416,..."
        )


class Fight:
    """One table. The reward of a seat is what its fighter's lead in hit points changes by, as a share of a
    full bar; the score of an episode is who won more rounds."""

    def __init__(self, source: FightingICE, port: int) -> None:
        self.spec = source.spec
        self._source = source
        self._link: Any = None
        link = import_module("ludus.games.adapters.fightingice_link")
        self._codes: Any = link
        self._connect = partial(link.Link, source.host, port, source.characters, source.time_limit_s)
        self._command_center = import_module("pyftg.aiinterface.command_center").CommandCenter

    def reset(self, seed: int) -> Turn:
        """The game draws nothing, so the seed changes nothing."""
        self.close()
        self._link = self._connect()
        self._keys: list[list[str]] = [[], []]
        self._busy = [0, 0]
        """Frames before each side may decide again."""
        self._clock = 0
        self._lead = self._paid = 0.0
        """Of side 0 over side 1, in shares of a bar: now, and what has been paid out as reward."""
        self._rounds_lead = 0.0
        """The same, at the ends of the rounds that are over."""
        self._faces_right = [True, True]
        self._won = [0, 0]
        self._scale = (_USUAL_HP, _USUAL_ENERGY)
        self._full = [0.0, 0.0]
        """Hit points of the two at the start of a round."""
        return self._play_on()

    def step(self, actions: Mapping[Seat, int]) -> Turn:
        for side, action in actions.items():
            command, frames = COMMANDS[action], self._source.frames_per_decision
            keys = keys_of(command, self._command_center, self._faces_right[side])
            self._keys[side] = keys * frames if command in HELD else keys
            self._busy[side] = max(frames, len(self._keys[side]))
        self._press()
        return self._play_on()

    def close(self) -> None:
        if self._link is not None:
            self._link.close()
            self._link = None

    def _play_on(self) -> Turn:
        """Until a side has to decide, or the game ends."""
        while True:
            states = [self._link.receive(side) for side in range(2)]
            if None in states:
                raise GameError("fightingice: the game was broken off")
            kinds = {state.state_flag for state in states}
            if len(kinds) > 1:
                raise GameError(f"fightingice: the two sides were told different things: {sorted(kinds)}")
            (kind,) = kinds
            if kind == self._codes.INITIALIZE:
                self._learn_scale(states[0].game_data)
            elif kind in (self._codes.ROUND_END, self._codes.GAME_END):
                self._end_round(states[0].round_result)
                if kind == self._codes.GAME_END:
                    return self._end()
            elif kind == self._codes.PROCESSING:
                deciding = self._see(states)
                if deciding:
                    return Turn(observations=deciding, reward=self._reward(), clock=self._clock)
                self._press()

    def _see(self, states: list[Any]) -> dict[Seat, Any]:
        """What the sides that have to decide now see."""
        self._clock += 1
        present = states[0].non_delay_frame_data
        seen = [state.frame_data if self._source.delayed else state.non_delay_frame_data for state in states]
        if not present.empty_flag and len(present.character_data) == 2:
            self._lead = self._rounds_lead + self._ahead([one.hp for one in present.character_data])
        deciding = {}
        for side, state in enumerate(states):
            self._busy[side] = max(0, self._busy[side] - 1)
            facing = state.frame_data.front
            self._faces_right[side] = bool(facing[side]) if len(facing) == 2 else True
            if state.is_control and not self._busy[side] and not self._keys[side]:
                deciding[side] = look(seen[side], side, self._scale, self._source.round_frames)
        return deciding

    def _press(self) -> None:
        """A frame's keys of both sides; the side that decides now has none left to press."""
        for side, keys in enumerate(self._keys):
            self._link.press(side, keys.pop(0) if keys else "")

    def _learn_scale(self, data: Any) -> None:
        # Without a limit, hit points count down from 0.
        hp = float(max(data.max_hps, default=0)) or _USUAL_HP
        self._scale = (hp, float(max(data.max_energies, default=0)) or _USUAL_ENERGY)
        self._full = [float(one) for one in data.max_hps] if len(data.max_hps) == 2 else [0.0, 0.0]

    def _ahead(self, hps: list[int]) -> float:
        """By how much less side 0 has lost in this round."""
        lost = [full - hp for full, hp in zip(self._full, hps, strict=True)]
        return (lost[1] - lost[0]) / self._scale[0]

    def _end_round(self, result: Any) -> None:
        left = list(result.remaining_hps)
        if len(left) == 2:
            self._rounds_lead += self._ahead(left)
            self._lead = self._rounds_lead
            for side in range(2):
                self._won[side] += left[side] > left[1 - side]
        self._keys, self._busy = [[], []], [0, 0]

    def _end(self) -> Turn:
        self.close()
        ahead = float((self._won[0] > self._won[1]) - (self._won[0] < self._won[1]))
        return Turn(
            observations={}, reward=self._reward(), over=True, score=(ahead, -ahead), clock=self._clock + 1
        )

    def _reward(self) -> tuple[float, float]:
        earned, self._paid = self._lead - self._paid, self._lead
        return (earned, -earned)
