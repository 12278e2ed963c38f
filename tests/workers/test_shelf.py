"""Players in memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ludus.data.records import ModelId
from ludus.data.trees import Tree
from ludus.games.builtin.siege import Siege
from ludus.models.network_policy import ActorCritic
from ludus.models.policy import Policy, load_weights
from ludus.workers.player_cache import FixedPlayers, LocalWeights, PlayerCache, SeatedPlayer

GAME = Siege()


def build(seed: int = 0) -> tuple[Policy, ...]:
    model = ActorCritic(hidden=(4,), entity_size=4)
    return tuple(model.build(kind, seed + index) for index, kind in enumerate(GAME.spec.kinds))


def weights(seed: int) -> Tree:
    return {
        f"{policy.kind.name}/{name}": tensor.numpy()
        for policy in build(seed)
        for name, tensor in policy.state_dict().items()
    }


class Frozen:
    """Frozen players are called by the seed of their weights; notes who is asked for."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def fetch_frozen(self, player: str) -> tuple[ModelId, Tree]:
        self.fetched.append(player)
        return ModelId(player, 0, 1), weights(int(player))


def has_weights(seated: SeatedPlayer, seed: int) -> bool:
    wanted = weights(seed)
    return all(
        np.array_equal(tensor.numpy(), wanted[f"{policy.kind.name}/{name}"])
        for policy in seated.policies
        for name, tensor in policy.state_dict().items()
    )


@pytest.fixture
def frozen() -> Frozen:
    return Frozen()


@pytest.fixture
def board() -> LocalWeights:
    return LocalWeights()


@pytest.fixture
def shelf(board: LocalWeights, frozen: Frozen) -> PlayerCache:
    return PlayerCache(lambda *_: build(), board, frozen, GAME.bots(), capacity=2)


def test_bots_come_from_the_game(shelf: PlayerCache) -> None:
    seated = shelf.get("rules")
    assert seated.bot is not None
    assert seated.policies == ()
    assert shelf.model_name("rules") == ""


def test_frozen_players_keep_their_weights(shelf: PlayerCache, frozen: Frozen) -> None:
    seated = shelf.get("3")
    assert has_weights(seated, 3)
    assert shelf.model_name("3") == "3:0:1"
    assert shelf.get("3") is seated
    assert frozen.fetched == ["3"]


def test_the_least_recently_used_frozen_player_leaves(shelf: PlayerCache, frozen: Frozen) -> None:
    for player in ("1", "2", "1", "3", "1", "2"):
        assert has_weights(shelf.get(player), int(player))
    assert frozen.fetched == ["1", "2", "3", "2"]


def test_learning_players_are_renewed_from_the_board(shelf: PlayerCache, board: LocalWeights, frozen: Frozen) -> None:
    board.publish(ModelId("main", 0, 0), weights(1))
    seated = shelf.get("main")
    board.publish(ModelId("main", 0, 1), weights(2))
    assert has_weights(seated, 1), "nothing changes between two refreshes"
    shelf.refresh()
    assert has_weights(seated, 2)
    assert shelf.model_name("main") == "main:0:1"
    board.publish(ModelId("main", 1, 0), weights(3))
    shelf.refresh()
    assert has_weights(seated, 3), "a new incarnation is newer, whatever its step"
    assert frozen.fetched == []


def test_learning_players_never_leave(shelf: PlayerCache, board: LocalWeights) -> None:
    board.publish(ModelId("main", 0, 0), weights(1))
    seated = shelf.get("main")
    for player in ("1", "2", "3"):
        shelf.get(player)
    assert shelf.get("main") is seated


def test_a_model_name_is_known_before_the_player_has_acted(shelf: PlayerCache) -> None:
    assert shelf.model_name("5") == "5:0:1"


def test_weights_of_another_shape_are_refused() -> None:
    wrong: dict[str, Any] = weights(0)
    name = next(iter(wrong))
    wrong[name] = np.zeros((3, 3, 3))
    with pytest.raises(ValueError, match="has shape"):
        load_weights(build(), wrong)


def test_fixed_players() -> None:
    seated = SeatedPlayer(policies=build(), model=ModelId("main", 0, 4))
    players = FixedPlayers({"main": seated, "random": SeatedPlayer(bot=GAME.bots()["random"])})
    players.refresh()
    assert players.get("main") is seated
    assert [players.model_name(name) for name in ("main", "random")] == ["main:0:4", ""]
