"""The orders of siege, as the numbers of its action heads."""

from __future__ import annotations

WAIT, RAID, STORM = range(3)
"""The attacker's."""
HOLD, MARCH = range(2)
"""The defender's."""
PAUSES = (1, 2, 4)
"""Ticks that the attacker may wait."""
