"""Networks: configurations, and the interface of a policy. Each name is loaded when first used."""

from __future__ import annotations

from ludus.public_names import lazy, listing

__getattr__, __dir__, __all__ = lazy("models")
__doc__ = f"{__doc__}\n{listing('models')}\n"
