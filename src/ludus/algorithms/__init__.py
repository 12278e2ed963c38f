"""Algorithms: losses, and the parts that they are made of. Each name is loaded when first used."""

from __future__ import annotations

from ludus.public_names import lazy, listing

__getattr__, __dir__, __all__ = lazy("algorithms")
__doc__ = f"{__doc__}\n{listing('algorithms')}\n"
