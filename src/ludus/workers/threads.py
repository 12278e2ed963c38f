"""How many cores the arithmetic of one process may use."""

from __future__ import annotations

import torch


def use_threads(count: int) -> None:
    """Pin torch to so many threads: on small networks more of them are slower, and results vary with them."""
    torch.set_num_threads(count)
