"""A player from elsewhere who plays a camp of a match at the server."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from ludus.data.trees import put, take
from ludus.games.game import GameSource, TableView
from ludus.games.remote.frames import pack
from ludus.games.remote.layout import SharedActions, view_parts
from ludus.games.remote.messages import View


class CampPlayer:
    """Between the stream of the player and the match: views go out, actions come in."""

    def __init__(self, source: GameSource, seats: tuple[int, ...]) -> None:
        self._spec = source.spec
        self.seats = seats
        self._views: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._decisions: queue.SimpleQueue[SharedActions | None] = queue.SimpleQueue()
        self._earned = TableView.allocate(self._spec, 1)
        """Only its rewards: those since the player was shown the table."""

    def next_view(self) -> bytes | None:
        """For the stream: the next frame, or None when the match has ended and all has been said."""
        return self._views.get()

    def decide(self, body: memoryview) -> None:
        actions = SharedActions(self._spec, 1)
        actions.take(body)
        self._decisions.put(actions)

    def leave(self) -> None:
        """The stream has ended, in whichever way."""
        self._decisions.put(None)

    def earn(self, view: TableView) -> None:
        """A step was taken, whether or not the player had to decide."""
        self._earned.reward[:] += view.reward
        for earned, paid in zip(self._earned.rewards, view.rewards, strict=True):
            earned += paid

    def show(self, view: TableView, cut_score: Sequence[float] | None = None) -> None:
        """`cut_score`: the episode is cut off here, with this score."""
        shown = self._own(view)
        if cut_score is not None:
            shown.to_act[:], shown.truncated[:], shown.score[0] = False, True, cut_score
        self._views.put(pack(View(), view_parts(shown)))
        for reward in (self._earned.reward, *self._earned.rewards):
            reward[:] = 0.0

    def end(self) -> None:
        self._views.put(None)

    def decision(self, most_s: float) -> SharedActions | None:
        """None if the player has left; raises `queue.Empty` if it takes longer."""
        return self._decisions.get(timeout=most_s)

    def _own(self, view: TableView) -> TableView:
        """A copy that shows nothing of what the other seats see or must do."""
        shown = TableView.allocate(self._spec, 1)
        for kind, seats in enumerate(self._spec.seats_of_kind):
            columns = [column for column, seat in enumerate(seats) if seat in self.seats]
            for target, source in (
                (shown.observation[kind], view.observation[kind]),
                (shown.legal[kind], view.legal[kind]),
                ({"": shown.rewards[kind]}, {"": self._earned.rewards[kind]}),
            ):
                put(target, (slice(None), columns), take(source, (slice(None), columns)))
        own = list(self.seats)
        shown.to_act[:, own], shown.reward[:, own] = view.to_act[:, own], self._earned.reward[:, own]
        for name in ("over", "truncated", "score", "clock"):
            getattr(shown, name)[:] = getattr(view, name)
        return shown
