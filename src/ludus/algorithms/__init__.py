"""Algorithms: losses, and the parts that they are made of.

Each name is loaded when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ludus.public_names import lazy, listing

if TYPE_CHECKING:
    from ludus.algorithms.actor_critic import A2C as A2C, Impala as Impala
    from ludus.algorithms.algorithm import Algorithm as Algorithm, Loss as Loss, Reference as Reference
    from ludus.algorithms.alphastar import AlphaStarGradient as AlphaStarGradient, RewardWeights as RewardWeights
    from ludus.algorithms.cloning import Cloning as Cloning
    from ludus.algorithms.losses import (
        critic_loss as critic_loss,
        detached as detached,
        masked_mean as masked_mean,
        mean_over_ranks as mean_over_ranks,
        standardise as standardise,
    )
    from ludus.algorithms.magnet import MagnetPolicyGradient as MagnetPolicyGradient
    from ludus.algorithms.ppo import PPO as PPO, mappo as mappo
    from ludus.algorithms.returns import (
        advantage_columns as advantage_columns,
        discounts as discounts,
        gae as gae,
        td_lambda as td_lambda,
        upgo as upgo,
        vtrace as vtrace,
    )
    from ludus.algorithms.teacher import EarlyGame as EarlyGame, Teacher as Teacher
    from ludus.data.batch import Batch as Batch

__getattr__, __dir__, __all__ = lazy("algorithms")
__doc__ = f"{__doc__}{listing('algorithms')}\n"
