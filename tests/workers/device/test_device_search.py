"""The search on a device finds what the search of the other runtimes finds, and players train by it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from engines import MODEL, new_engine

from ludus.algorithms import GumbelAlphaZero, GumbelSearch
from ludus.config import ConfigError
from ludus.data.trees import Tree
from ludus.games import resolve
from ludus.games.device.tensor_game import TensorState, tensor_game_of
from ludus.games.game import allocate_actions
from ludus.games.network_search import Floats, NetworkSearch
from ludus.models.network_policy import NetworkPolicy
from ludus.models.policy import evaluate
from ludus.recipes import connect_four_search
from ludus.runtime.device import require_on_device
from ludus.workers.device.search import TensorSearch

TABLES = 48
NO_NOISE = math.exp(-1.0)
"""The uniform number whose Gumbel noise is 0."""


def as_it_is(function):  # type: ignore[no-untyped-def]
    return function


@pytest.mark.parametrize(
    ("address", "moves"), [("connect_four", 11), ("tic_tac_toe", 4), ("pgx:othello", 52), ("pgx:tic_tac_toe", 4)]
)
@pytest.mark.parametrize(
    "settings",
    [
        GumbelSearch(simulations=1),
        GumbelSearch(simulations=24, considered=4, c_scale=0.3),
        GumbelSearch(simulations=40),
        GumbelSearch(simulations=40, max_depth=3),
    ],
    ids=str,
)
def test_it_finds_what_the_search_on_the_cpu_finds(address: str, moves: int, settings: GumbelSearch) -> None:
    require_library(address)
    source = resolve(address)
    game = tensor_game_of(source)
    assert game is not None
    policy = MODEL.build(game.spec.kinds[0], 3)
    tables, state = source.tables(TABLES), game.start(torch.zeros(TABLES, game.start_draws))
    tables.reset(np.arange(TABLES), np.arange(TABLES, dtype=np.uint64))
    rng = np.random.default_rng(0)
    going = np.ones(TABLES, np.bool_)
    for _ in range(moves):
        actions = allocate_actions(source.spec, TABLES)
        [(head, columns)] = actions[0].items()
        mover = tables.view.to_act.argmax(1)
        legal = tables.view.legal[0][head][np.arange(TABLES), mover]
        chosen = np.where(legal, rng.random(legal.shape), -1.0).argmax(1)
        columns[np.arange(TABLES), mover] = chosen
        tables.step(actions)
        both = torch.from_numpy(chosen).unsqueeze(1).expand(-1, 2)
        state = game.step(state, both, torch.zeros(TABLES, 0)).state
        going &= ~tables.view.over
    still = np.flatnonzero(going)
    assert len(still) > 12

    def rated(kind: int, observation: Tree, legal: Tree) -> tuple[Floats, Floats]:
        return evaluate(policy, observation, legal)

    expected = NetworkSearch(source, settings, rated).search(tables, still, rng, noise=False)
    state = {name: tensor[still] for name, tensor in state.items()}
    search = TensorSearch(
        game, settings, len(still), lambda *given: network(policy, game, *given), torch.device("cpu"), as_it_is
    )
    with torch.no_grad():
        found = search.search(state, torch.full((len(still), game.num_options), NO_NOISE), None)
    np.testing.assert_allclose(found.policy, expected.policy, atol=2e-4)
    np.testing.assert_allclose(found.value, expected.value, atol=2e-4)
    np.testing.assert_array_equal(found.action, expected.action)
    chosen = np.take_along_axis(expected.policy, expected.action[:, None].astype(np.int64), 1)[:, 0]
    np.testing.assert_allclose(found.log_prob, np.log(np.maximum(chosen, 1e-6)), atol=2e-2)


def require_library(address: str) -> None:
    if address.startswith("pgx:"):
        pytest.importorskip("pgx", reason="Pgx is not installed: pip install -e '.[pgx]'")


def test_connect_four_of_pgx_is_searched_as_our_own() -> None:
    """The same network in the same positions, with the same noise, once in JAX and once in torch."""
    require_library("pgx:connect_four")
    own = tensor_game_of(resolve("connect_four", threats=False))
    other = tensor_game_of(resolve("pgx:connect_four"))
    assert own is not None
    assert other is not None
    policy = MODEL.build(own.spec.kinds[0], 3)

    def rated(state: TensorState, seat: torch.Tensor, weights: None) -> tuple[torch.Tensor, torch.Tensor]:
        game = other if "observation" in state else own
        [shown] = game.observe(state, seat).values()
        if game is other:
            shown = shown.flip(2).flatten(1).float()  # its rows begin at the top
        log_probs, values = evaluate(policy, {"board": shown.numpy()}, {"column": game.legal(state, seat).numpy()})
        return torch.from_numpy(log_probs), torch.from_numpy(values)

    chances = torch.Generator().manual_seed(1)
    positions = [game.start(torch.zeros(TABLES, game.start_draws)) for game in (own, other)]
    going = torch.ones(TABLES, dtype=torch.bool)
    for _ in range(14):
        legal = own.legal(positions[0], torch.zeros(TABLES, dtype=torch.int64))
        moves = torch.where(legal, torch.rand(legal.shape, generator=chances), -1.0).argmax(1)
        steps = [
            game.step(state, moves.unsqueeze(1).expand(-1, 2), torch.zeros(TABLES, game.step_draws))
            for game, state in zip((own, other), positions, strict=True)
        ]
        assert torch.equal(steps[0].over & going, steps[1].over & going)
        going &= ~steps[0].over
        positions = [step.state for step in steps]
    noise = torch.rand(TABLES, own.num_options, generator=chances)
    found = []
    for game, state in zip((own, other), positions, strict=True):
        settings = GumbelSearch(simulations=32, c_scale=0.5)
        search = TensorSearch(game, settings, TABLES, rated, torch.device("cpu"), as_it_is)
        with torch.no_grad():
            found.append(search.search(state, noise, None))
    assert going.sum() > 12
    for one, same in zip(*found, strict=True):
        torch.testing.assert_close(one[going], same[going])


def network(
    policy: NetworkPolicy, game: object, state: TensorState, seat: torch.Tensor, weights: None
) -> tuple[torch.Tensor, torch.Tensor]:
    shown, legal = game.observe(state, seat), game.masks(state, seat)  # type: ignore[attr-defined]
    arrays, masks = ({name: one.numpy() for name, one in tree.items()} for tree in (shown, legal))
    log_probs, values = evaluate(policy, arrays, masks)
    return torch.from_numpy(log_probs), torch.from_numpy(values)


@pytest.mark.parametrize("address", ["tic_tac_toe", "pgx:tic_tac_toe"])
def test_players_train_by_search(address: str) -> None:
    require_library(address)
    algorithm = GumbelAlphaZero(search=GumbelSearch(simulations=8, c_scale=0.3))
    engine = new_engine(address, tables=64, batch=512, minibatch=128, algorithm=algorithm)
    losses = []
    for _ in range(30):
        engine.iterate(0.0)
        [statistics] = engine.read()
        losses.append(statistics["policy_loss"])
    assert statistics["gradient_steps"] >= 3
    assert np.mean(losses[-5:]) < 0.7 * np.mean(losses[:5]), "the network comes closer to what its search finds"


def test_players_that_search_in_different_ways_are_refused() -> None:
    experiment = replace(connect_four_search.experiment(), runtime="device")
    require_on_device(experiment)
    main = experiment.league.roles["main"]
    other = replace(main, algorithm=GumbelAlphaZero(search=GumbelSearch(simulations=4)))
    league = replace(experiment.league, roles={"main": main, "exploiter": other})
    with pytest.raises(ConfigError, match="search in different ways"):
        require_on_device(replace(experiment, league=league))
