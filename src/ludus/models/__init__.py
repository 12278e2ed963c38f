"""Networks: configurations, and the interface of a policy.

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.public_names import lazy, listing

if TYPE_CHECKING:
    from ludus.models.alphastar import AlphaStar as AlphaStar
    from ludus.models.alphastar_encoder import (
        AlphaStarSizes as AlphaStarSizes,
        Scatter as Scatter,
    )
    from ludus.models.encoders import EncoderSizes as EncoderSizes
    from ludus.models.fully_conv import FullyConv as FullyConv
    from ludus.models.module_policy import ModulePolicy as ModulePolicy
    from ludus.models.network_policy import ActorCritic as ActorCritic
    from ludus.models.policy import Acted as Acted, ModelConfig as ModelConfig, Policy as Policy, Unrolled as Unrolled
    from ludus.store.model_storage import ModelCache as ModelCache

__getattr__, __dir__, __all__ = lazy("models")
__doc__ = f"{__doc__}{listing('models')}\n"
