"""An actor's way to the policy worker: rows and answers in shared memory, a signal each way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

from ludus.data.records import ModelId
from ludus.games.game import Bot
from ludus.local.shared_parts import WAIT_S
from ludus.runtime.channel import Signal
from ludus.runtime.weight_board import WeightBoard
from ludus.workers.inference import Answer, Rows
from ludus.workers.policy_requests import RequestArea

NAMES_IN_MEMORY = 1024
"""Frozen players whose model ids are remembered."""


class RemoteInference:
    """An `Inference` that asks the policy worker and sleeps until the answer is there."""

    def __init__(
        self,
        area: RequestArea,
        *,
        board: WeightBoard,
        learning: Sequence[str],
        bots: Mapping[str, Bot],
        draws: Sequence[int],
        find_frozen: Callable[[str], str],
        wake_worker: Signal,
        woken: Signal,
        show_life: Callable[[], None],
    ) -> None:
        """`find_frozen`: player -> id of its pinned weights; `draws`: per kind of seat, the uniform numbers
        that one row uses up; `show_life` is called now and then while it waits."""
        self._area = area
        self._board = board
        self._learning = learning
        self._bots = bots
        self._draws = draws
        self._find_frozen = lru_cache(NAMES_IN_MEMORY)(find_frozen)
        self._wake_worker = wake_worker
        self._woken = woken
        self._show_life = show_life
        self._models: dict[str, ModelId] = {}
        """What the learning players decide with."""

    def bot(self, player: str) -> Bot | None:
        return self._bots.get(player)

    def num_draws(self, kind: int) -> int:
        return self._draws[kind]

    def refresh(self) -> None:
        """The policy worker renews the weights; here only their names change."""
        for player in self._learning:
            newest = self._board.newest(player)
            if newest is not None:
                self._models[player] = newest

    def model_name(self, player: str) -> str:
        if player in self._bots:
            return ""
        model = self._models.get(player)
        return self._find_frozen(player) if model is None else str(model)

    def act_all(self, requests: Sequence[Rows]) -> Sequence[Answer]:
        """One round trip; the answers stay where they are, in shared memory."""
        self._wait()  # a predecessor that died may have left a request, and it is being answered now
        self._area.ask(requests)
        self._wake_worker.notify()
        self._wait()
        answers = self._area.answers(requests)
        for rows in requests:
            versions = self._area.kinds[rows.kind].versions(len(rows.groups))
            for group, (incarnation, step) in zip(rows.groups, versions, strict=True):
                if group.player in self._learning:
                    self._models[group.player] = ModelId(group.player, incarnation, step)
        return answers

    def _wait(self) -> None:
        while self._area.is_waiting:
            self._woken.wait(WAIT_S)
            self._show_life()
