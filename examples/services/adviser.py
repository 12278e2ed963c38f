"""The service of examples/my_service.py. In a separate file it needs no torch and starts at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ludus import service
from ludus.games import TIC_TAC_TOE_CELLS as CELLS, TIC_TAC_TOE_LINES as LINES

ON_LINE = np.array([[line >> cell & 1 for cell in range(CELLS)] for line in LINES], np.float32)


class Adviser:
    """Chooses moves in tic-tac-toe. Its output is in the run folder, logs/service-adviser-0.log."""

    def __init__(self, wins: float = 2.0, blocks: float = 1.0) -> None:
        self._worth = wins, blocks
        self._boards = 0

    @service(batch=8, max_delay_ms=1.0, idempotent=True)
    def choose(self, requests: Sequence[dict[str, Any]]) -> list[NDArray[np.int64]]:
        """Moves for the boards of up to 8 requests, in one call."""
        board = np.concatenate([request["board"] for request in requests]).astype(np.float32)
        legal = np.concatenate([request["legal"] for request in requests])
        # The seed comes with the request, so every instance gives the same answer.
        score = np.concatenate([np.random.default_rng(one["seed"]).random(one["legal"].shape) for one in requests])
        for side, worth in enumerate(self._worth):
            on_lines = board[:, side * CELLS : (side + 1) * CELLS] @ ON_LINE.T
            score += worth * ((on_lines == 2).astype(np.float32) @ ON_LINE)
        self._boards += len(board)
        moves = np.where(legal, score, -1.0).argmax(1)
        return np.split(moves, np.cumsum([len(request["board"]) for request in requests])[:-1])

    @service(reply=False)
    def note(self, worker: str, entropy: float) -> None:
        """Prints a line; the caller does not wait for an answer."""
        print(f"{worker}: entropy {entropy:.3f} after {self._boards:,} boards here", flush=True)
