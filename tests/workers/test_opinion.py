"""What a policy thinks of one decision is what it acts by."""

from __future__ import annotations

import numpy as np
import pytest

from ludus.data.specs import SeatKind
from ludus.data.trees import Tree, allocate
from ludus.evaluation.play.session import policy_output
from ludus.games.builtin.connect_four import ConnectFour
from ludus.games.builtin.skirmish import Skirmish
from ludus.games.game import GameSource
from ludus.models.network_policy import ActorCritic


def seen(source: GameSource) -> tuple[SeatKind, Tree, Tree]:
    """What seat 0 sees and may do at the start, as one row."""
    tables = source.tables(1)
    tables.reset(np.array([0]), np.array([3], np.uint64))
    view = tables.view
    observation = {name: array[:, 0] for name, array in view.observation[0].items()}
    legal = {name: array[:, 0] for name, array in view.legal[0].items()}
    return source.spec.kinds[0], observation, legal


@pytest.mark.parametrize("memory", [0, 8])
@pytest.mark.parametrize("source", [ConnectFour(), Skirmish()], ids=["one head", "several heads"])
def test_it_is_the_law_of_the_first_head_and_the_value(source: GameSource, memory: int) -> None:
    kind, observation, legal = seen(source)
    policy = ActorCritic(hidden=(16,), memory=memory).build(kind, seed=5)
    rng = np.random.default_rng(1)
    state = {
        name: rng.normal(size=array.shape).astype(np.float32)
        for name, array in allocate(policy.state_arrays, (1,)).items()
    }
    acted = policy.act(observation, legal, state, rng.random((1, policy.num_draws), np.float32))
    opinion = policy_output(policy, observation, legal, state, acted.action)
    first, chosen = next(iter(acted.action.items()))
    assert len(opinion.probabilities) == kind.num_options(first)
    assert sum(opinion.probabilities) == pytest.approx(1, abs=1e-5)
    assert opinion.probabilities[int(chosen[0])] == pytest.approx(np.exp(acted.log_prob[0, 0]), rel=1e-4)
    assert opinion.value == pytest.approx(float(acted.value[0]), abs=1e-5)
    for option, is_legal in enumerate(legal[first][0].tolist()):
        assert is_legal or opinion.probabilities[option] < 1e-6
    if memory:
        other = policy_output(policy, observation, legal, policy.initial_state(1), acted.action)
        assert other.value != opinion.value, "it depends on what was remembered"
