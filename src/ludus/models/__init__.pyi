"""The public names of `ludus.models`."""

# Also in `ludus`
from ludus.models.network_policy import ActorCritic  # Encoders, trunk, optional memory, heads and a critic.
from ludus.models.fully_conv import FullyConv  # A convolutional network for maps.
from ludus.models.alphastar import AlphaStar  # AlphaStar's network, in several sizes.
from ludus.models.module_policy import ModulePolicy  # A policy from a plain `nn.Module`.
from ludus.models.policy import Policy  # Interface from observations to actions.

# More
from ludus.models.policy import ModelConfig  # Interface of what an experiment names as its model.
from ludus.models.policy import Acted  # What a policy decided, one row per observation.
from ludus.models.policy import Unrolled  # What a policy says about a batch, with gradient.
from ludus.models.encoders import EncoderSizes  # Sizes of the encoders of planes and entities.
from ludus.models.alphastar_encoder import Scatter  # Puts entities onto the map.
from ludus.models.alphastar_encoder import AlphaStarSizes  # Sizes of AlphaStar's encoders.
from ludus.store.model_storage import ModelCache  # Models of a run, kept in memory.

__all__ = [
    "Acted", "ActorCritic", "AlphaStar", "AlphaStarSizes", "EncoderSizes", "FullyConv", "ModelCache", "ModelConfig",
    "ModulePolicy", "Policy", "Scatter", "Unrolled",
]  # fmt: skip
