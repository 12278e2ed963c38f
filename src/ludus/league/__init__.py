"""Leagues: roles, matchmaking, promotion, populations, and their records. Each name is loaded when first used."""

from __future__ import annotations

from ludus.public_names import lazy, listing

__getattr__, __dir__, __all__ = lazy("league")
__doc__ = f"{__doc__}\n{listing('league')}\n"
