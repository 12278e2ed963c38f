"""Which players a chain of games joins: others cannot be compared with each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def groups(met: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Per player the number of its group, from a symmetric table of who has met whom. As scipy's
    `connected_components`, which takes longer to import than a league to be rated."""
    number = np.full(len(met), -1, np.intp)
    for player in range(len(met)):
        if number[player] < 0:
            group = int(number.max()) + 1
            reached = np.zeros(len(met), np.bool_)
            reached[player] = True
            while reached.any():
                number[reached] = group
                reached = met[reached].any(axis=0) & (number < 0)
    return number


def largest_group(met: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The players of the largest group, the first of several, in order."""
    number = groups(met)
    return np.flatnonzero(number == np.bincount(number).argmax())
