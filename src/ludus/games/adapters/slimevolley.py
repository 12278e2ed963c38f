"""SlimeVolley (slimevolleygym 0.1): volleyball of two slimes, one a side."""

from __future__ import annotations

import io
import sys
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.data.trees import IntArray, Tree
from ludus.games.bots import RandomBot
from ludus.games.game import Actions, Bot, GameBatch
from ludus.games.pictures import colour_of_team
from ludus.games.tables import ArrayTables, GameDefaults

LIVES = 5
MOVES = ((0, 0, 0), (1, 0, 0), (1, 0, 1), (0, 0, 1), (0, 1, 1), (0, 1, 0))
"""Distinct combinations of the buttons (forward, backward, jump): stand, forward, forward and jump, jump, backward
and jump, backward."""
_MOVE_OF_BUTTONS = np.zeros((2, 2, 2), np.int32)
for _move, _buttons in enumerate(MOVES):
    _MOVE_OF_BUTTONS[_buttons] = _move
_MOVE_OF_BUTTONS[1, 1] = _MOVE_OF_BUTTONS[0, 0]  # forward and backward cancel each other


_PARTS = ("x", "y", "vx", "vy", "bx", "by", "bvx", "bvy", "ox", "oy", "ovx", "ovy")
SCALE = 10.0
"""Divisor of observations: 12 numbers about 1 in size, position and speed of oneself, the ball and the opponent."""
_OTHER_SIDE = [8, 9, 10, 11, 4, 5, 6, 7, 0, 1, 2, 3]
_OTHER_SIGN = np.array([1, 1, 1, 1, -1, 1, -1, 1, 1, 1, 1, 1])
"""Each side sees itself first, with x away from the net, so that only the ball's x changes its sign."""

_PIXELS = 10
_WIDTH, _HEIGHT, _GROUND = 48, 24, 1.5
_SKY, _EARTH, _FENCE, _BALL = (11, 16, 19), (116, 114, 117), (102, 56, 35), (217, 79, 0)


@dataclass(frozen=True, kw_only=True)
class SlimeVolley(GameDefaults):
    """Seat 0 plays on the right, seat 1 on the left; both see the court from their own side.

    A point is worth 1 to the seat that makes it and -1 to the other; a seat that loses five points has lost. Episodes
    are cut off after `max_length` frames: observations show no clock, so the future still has value.
    """

    TENSOR_TWIN: ClassVar[str] = "ludus.games.device.slimevolley:TensorSlimeVolley.of"

    max_length: int = 3_000

    @cached_property
    def spec(self) -> GameSpec:
        return GameSpec.symmetric(
            name="slimevolley",
            num_seats=2,
            observation=ObservationSpec(parts={"court": Vector(size=len(_PARTS))}),
            action=ActionSpec(heads={"move": Choice(num=len(MOVES), masked=False)}),
            max_length=self.max_length,
        )

    def tables(self, num_tables: int) -> GameBatch:
        return SlimeVolleyTables(self.spec, num_tables)

    def bots(self) -> Mapping[str, Bot]:
        return {"random": RandomBot(), "baseline": BaselineBot()}


class SlimeVolleyTables(ArrayTables):
    """One `Game` object per table; the library's environment class would compute every observation four times."""

    def __init__(self, spec: GameSpec, num_tables: int) -> None:
        super().__init__(spec, num_tables)
        self._library = _load_library()
        self._games: list[Any] = [None] * num_tables
        self._frames = np.zeros(num_tables, np.int64)
        self._lives = np.zeros((num_tables, 2), np.int64)
        baseline = self._library.BaselinePolicy()
        self._weight, self._bias = baseline.weight, baseline.bias
        self.baseline = np.zeros((num_tables, 2, len(self._bias)))
        """[tables, seats, outputs] of the game's own player: three buttons, then its memory. It is computed for every
        seat in every step, so that it depends only on seed and actions."""

    def reset(self, tables: IntArray, seeds: NDArray[np.uint64]) -> None:
        for table, seed in zip(tables.tolist(), seeds.tolist(), strict=True):
            self._games[table] = self._library.Game(np_random=np.random.default_rng(seed))
        self._start_episodes(tables)
        self._frames[tables] = 0
        self._lives[tables] = LIVES
        self.baseline[tables] = 0.0
        self._show(tables, [_read(self._games[table].agent_right.state) for table in tables.tolist()])

    def step(self, actions: Actions) -> None:
        tables = np.flatnonzero(self.view.to_act[:, 0])
        moves = actions[0]["move"][tables]
        self._require_legal("move", tables[:, None], np.arange(2), moves)
        points, seen = [], []
        for table, (right, left) in zip(tables.tolist(), moves.tolist(), strict=True):
            game = self._games[table]
            game.agent_right.setAction(MOVES[right])
            game.agent_left.setAction(MOVES[left])
            points.append(game.step())
            seen.append(_read(game.agent_right.state))
        if seen:
            self._count(tables, np.array(points))
            self._show(tables, seen)

    def render(self, table: int, seat: int | None = None) -> NDArray[np.uint8]:
        """RGB [240, 480, 3] of the court, which both seats see whole."""
        return draw(self._games[table], self._lives[table].tolist())

    def _count(self, tables: IntArray, points: NDArray[np.int64]) -> None:
        """Row i: the right (1), the left (-1) or no side (0) made a point at `tables[i]`."""
        view = self.view
        self._frames[tables] += 1
        view.reward[tables, 0], view.reward[tables, 1] = points, -points
        self._lives[tables, 0] -= points < 0
        self._lives[tables, 1] -= points > 0
        over = (self._lives[tables] == 0).any(axis=1)
        cut = ~over & (self._frames[tables] >= self.spec.max_length)
        ended = tables[over | cut]
        if len(ended):
            view.over[tables], view.truncated[tables] = over, cut
            view.to_act[ended] = False
            lead = self._lives[ended, 0] - self._lives[ended, 1]
            view.score[ended] = np.stack([lead, -lead], axis=1)

    def _show(self, tables: IntArray, seen: list[tuple[float, ...]]) -> None:
        right = np.array(seen)
        court = np.stack([right, right[:, _OTHER_SIDE] * _OTHER_SIGN], axis=1) / SCALE
        self.view.observation[0]["court"][tables] = court
        inputs = np.concatenate([court[:, :, :8], self.baseline[tables]], axis=2)
        # Unlike a product of matrices, einsum adds up in an order independent of the number of tables.
        self.baseline[tables] = np.tanh(np.einsum("tsi,oi->tso", inputs, self._weight) + self._bias)


@dataclass(frozen=True)
class BaselineBot:
    """The game's own player: a network of 120 weights, four of whose outputs are its memory."""

    def act(self, game: GameBatch, tables: IntArray, seats: IntArray, rng: np.random.Generator) -> Tree:
        outputs = getattr(game, "baseline", None)  # recorded tables wrap the game's own
        if outputs is None:
            raise TypeError(f"bot 'baseline' plays only at tables of slimevolley, not {type(game).__name__}")
        forward, backward, jump = (outputs[tables, seats, :3] > 0.75).T.astype(np.int64)
        return {"move": _MOVE_OF_BUTTONS[forward, backward, jump]}


def draw(game: Any, lives: Sequence[int]) -> NDArray[np.uint8]:
    """RGB [240, 480, 3] of a game object and the lives of the right and the left side."""
    picture = np.empty((_HEIGHT * _PIXELS, _WIDTH * _PIXELS, 3), np.uint8)
    picture[:] = _SKY
    y = _HEIGHT - (np.arange(len(picture))[:, None] + 0.5) / _PIXELS
    x = (np.arange(picture.shape[1]) + 0.5) / _PIXELS - _WIDTH / 2

    def disc(thing: Any, colour: tuple[int, int, int]) -> None:
        picture[(x - thing.x) ** 2 + (y - thing.y) ** 2 <= thing.r**2] = colour

    picture[(abs(x - game.fence.x) <= game.fence.w / 2) & (y <= game.fenceStub.y)] = _FENCE
    disc(game.fenceStub, _FENCE)
    for team, slime in enumerate((game.agent_right, game.agent_left)):
        half = ((x - slime.x) ** 2 + (y - slime.y) ** 2 <= slime.r**2) & (y >= slime.y)
        picture[half] = colour_of_team(team)
        for life in range(lives[team]):
            centre = slime.dir * (_WIDTH / 2 - 1 - 1.5 * life)
            picture[(x - centre) ** 2 + (y - _HEIGHT + 1) ** 2 <= 0.4**2] = colour_of_team(team)
    disc(game.ball, _BALL)
    picture[np.broadcast_to(y <= _GROUND, picture.shape[:2])] = _EARTH
    return picture


_read = attrgetter(*_PARTS)


def _load_library() -> Any:
    """Import the library without its messages, warnings and print options for arrays. OpenCV, which it needs for
    pictures only, may be missing."""
    with np.printoptions(), warnings.catch_warnings(), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            import cv2  # noqa: F401
        except ImportError:
            sys.modules["cv2"] = ModuleType("cv2")
        try:
            from slimevolleygym import slimevolley
        finally:
            if not hasattr(sys.modules["cv2"], "__file__"):
                del sys.modules["cv2"]
    return slimevolley
