"""The public names of `ludus.algorithms`."""

# Also in `ludus`
from ludus.algorithms.algorithm import Algorithm  # Interface of what turns a batch into a loss.
from ludus.algorithms.algorithm import Loss  # A scalar to minimise and its statistics.
from ludus.data.batch import Batch  # Trajectories stacked [T+1, B].
from ludus.algorithms.ppo import PPO  # Proximal policy optimisation.
from ludus.algorithms.actor_critic import A2C  # Advantage actor-critic.
from ludus.algorithms.actor_critic import Impala  # V-trace actor-critic.
from ludus.algorithms.magnet import MagnetPolicyGradient  # Policy gradient held near a slowly moving magnet.
from ludus.algorithms.alphastar import AlphaStarGradient  # AlphaStar's TD(lambda), V-trace and UPGO.

# More
from ludus.algorithms.gumbel_alphazero import GumbelAlphaZero  # Learns what a search with its network finds.
from ludus.data.search import GumbelSearch  # Settings of a search with a network.
from ludus.algorithms.ppo import mappo  # PPO with the settings of multi-agent PPO.
from ludus.algorithms.cloning import Cloning  # Behavioural cloning from recorded actions.
from ludus.algorithms.algorithm import Reference  # A copy of the weights that an algorithm compares with.
from ludus.algorithms.teacher import Teacher  # Keeps the policy near a teacher.
from ludus.algorithms.teacher import EarlyGame  # The part of an episode in which a teacher counts.
from ludus.algorithms.alphastar import RewardWeights  # How much each further reward counts.
from ludus.algorithms.returns import advantage_columns  # Advantages and value targets of a batch.
from ludus.algorithms.losses import critic_loss  # The loss of the value estimate.
from ludus.algorithms.losses import masked_mean  # Mean over the rows that count.
from ludus.algorithms.losses import mean_over_ranks  # Mean over the rows of all ranks.
from ludus.algorithms.losses import standardise  # Zero mean and unit variance over the rows that count.
from ludus.algorithms.losses import detached  # Statistics without gradient.
from ludus.algorithms.returns import discounts  # The discount of each decision.
from ludus.algorithms.returns import td_lambda  # TD(lambda) value targets.
from ludus.algorithms.returns import gae  # Generalised advantage estimates.
from ludus.algorithms.returns import vtrace  # V-trace targets.
from ludus.algorithms.returns import upgo  # Upgoing policy gradient targets.

__all__ = [
    "A2C",
    "PPO",
    "Algorithm",
    "AlphaStarGradient",
    "Batch",
    "Cloning",
    "EarlyGame",
    "GumbelAlphaZero",
    "GumbelSearch",
    "Impala",
    "Loss",
    "MagnetPolicyGradient",
    "Reference",
    "RewardWeights",
    "Teacher",
    "advantage_columns",
    "critic_loss",
    "detached",
    "discounts",
    "gae",
    "mappo",
    "masked_mean",
    "mean_over_ranks",
    "standardise",
    "td_lambda",
    "upgo",
    "vtrace",
]  # fmt: skip
