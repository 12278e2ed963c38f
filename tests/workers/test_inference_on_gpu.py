"""Policies that act on a GPU. All of it needs one; on a machine that has one, plain pytest runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from table_play import GAMES, SMALL, Play, self_play
from test_actor_trajectories import WITH_MEMORY
from test_inline_inference import MODEL, players, rows_for
from torch import nn

from ludus.games.builtin.connect_four import ConnectFour
from ludus.models.module_policy import ModulePolicy
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import placed
from ludus.models.tensors import staging_memory
from ludus.workers.inference import InlineInference
from ludus.workers.player_cache import FixedPlayers, PlayerCache
from ludus.workers.policy_worker import COUNTERS, PolicyWorker, RequestArea

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda")


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions round to 10 bits otherwise."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)


def on_gpu(play: Play) -> InlineInference:
    def build() -> Any:
        return tuple(placed(policy, GPU) for policy in play.build())

    shelf = PlayerCache(lambda *_: build(), play.board, play, play.game.bots(), capacity=2)
    return InlineInference(shelf, [policy.num_draws for policy in play.build()])


@pytest.mark.parametrize("model", [SMALL, WITH_MEMORY], ids=["plain", "memory"])
@pytest.mark.parametrize("game", ["kuhn", "connect_four", "hills", "siege"])
def test_it_plays_as_on_the_cpu(game: str, model: ActorCritic) -> None:
    """The same actions from the same uniforms, hence the same games, for as long as no draw is a tie."""
    options: dict[str, Any] = {"model": model, "hand_over_after": 20, "new_weights": True}
    here = self_play(GAMES[game], **options).run(20)
    there = self_play(GAMES[game], **options, inference=on_gpu).run(20)
    assert len(here.handed) > 1
    for one, other in zip(here.handed, there.handed, strict=True):
        for head, action in one.batch.action.items():
            assert np.array_equal(action, other.batch.action[head])
        assert np.array_equal(one.batch.version, other.batch.version)
        assert np.allclose(one.batch.log_prob, other.batch.log_prob, atol=1e-4)
        assert np.allclose(one.batch.value, other.batch.value, atol=1e-4)
        for name, state in one.batch.state.items():
            assert np.allclose(state, other.batch.state[name], atol=1e-4)


@pytest.mark.parametrize("num_actors", [1, 3])
def test_a_policy_worker_answers_from_a_gpu(num_actors: int) -> None:
    game = ConnectFour()
    here, there = players(game, MODEL, 3), players(game, MODEL, 3)
    for seated in there.values():
        seated.policies = tuple(placed(policy, GPU) for policy in seated.policies)
    policies = here["learner"].policies
    areas = [RequestArea(policies, [16], np.zeros) for _ in range(num_actors)]
    worker = PolicyWorker(
        InlineInference(FixedPlayers(there), [1]),
        areas,
        policies,
        delay_s=0.0,
        wake=lambda actor: None,
        counters=np.zeros(len(COUNTERS)),
        new=staging_memory(GPU),
    )
    inline = InlineInference(FixedPlayers(here), [1])
    for seed in range(3):  # staging memory is used again and again
        asked = [
            rows_for(game, here, {"learner": 4, "p1": 3, "p2": 5}, seed=10 * seed + actor)
            for actor in range(num_actors)
        ]
        for area, rows in zip(areas, asked, strict=True):
            area.ask([rows])
        worker.step()
        for area, rows in zip(areas, asked, strict=True):
            [answer] = area.answers([rows])
            expected = inline.act(rows)
            for head, action in expected.acted.action.items():
                assert np.array_equal(answer.acted.action[head], action)
            assert np.allclose(answer.acted.log_prob, expected.acted.log_prob, atol=1e-4)
            assert np.array_equal(answer.version, expected.version)


def test_logits_that_are_not_finite_are_an_error_and_not_the_end_of_the_process() -> None:
    game = ConnectFour()
    held = players(game, MODEL, 1)
    policy = placed(held["learner"].policies[0], GPU)
    rows = rows_for(game, held, {"learner": 4})
    good = policy.act(rows.observation, rows.legal, {}, rows.uniforms)
    broken = {name: np.full_like(array, np.nan) for name, array in rows.observation.items()}
    with pytest.raises(ValueError, match=r"row 0: logits are not finite"):
        policy.act(broken, rows.legal, {}, rows.uniforms)
    again = policy.act(rows.observation, rows.legal, {}, rows.uniforms)
    assert np.array_equal(good.log_prob, again.log_prob)


def test_a_plain_module_acts_on_a_gpu() -> None:
    game = ConnectFour()
    kind = game.spec.kinds[0]
    held = players(game, MODEL, 1)
    rows = rows_for(game, held, {"learner": 4})
    name = next(iter(rows.observation))
    [head] = rows.legal
    size = rows.observation[name][0].size

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(size, kind.num_options(head) + 1)

        def forward(self, observation: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
            outputs = self.layer(observation[name].flatten(1))
            return outputs[:, :-1], outputs[:, -1]

    policy = ModulePolicy(kind, Net())
    here = policy.act(rows.observation, rows.legal, {}, rows.uniforms)
    there = placed(policy, GPU).act(rows.observation, rows.legal, {}, rows.uniforms)
    assert np.array_equal(here.action[head], there.action[head])
    assert np.allclose(here.value, there.value, atol=1e-5)
