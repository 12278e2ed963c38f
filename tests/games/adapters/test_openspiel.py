"""OpenSpiel's games: promises, exact values beside OpenSpiel's own, chance, teams, and what is refused."""

from __future__ import annotations

import pickle
from collections import Counter
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyspiel", reason="OpenSpiel is not installed: pip install -e '.[openspiel]'")
import pyspiel

from ludus.data.game_tree import FlatTree
from ludus.data.phantom_tree import PhantomTree, hex_connection, three_in_a_row
from ludus.data.specs import Planes, Vector
from ludus.evaluation.exploitability import exact_game
from ludus.experiment import Experiment
from ludus.games.adapters.openspiel import OpenSpiel, OpenSpielTables
from ludus.games.catalog import resolve
from ludus.games.check import check_game
from ludus.games.game import GameBatch, HasTrees, allocate_actions
from ludus.games.tree_batch import TreeBatch
from ludus.models.network_policy import ActorCritic
from ludus.workers.exploitability import ExactGame

TURNS = [
    "connect_four",
    "tic_tac_toe",
    "breakthrough(rows=3,columns=3)",
    "kuhn_poker",
    "leduc_poker",
    "liars_dice(dice_sides=3)",
    "phantom_ttt",
    "pig(winscore=6)",
    "tiny_bridge_4p",
    "tiny_hanabi",
    "first_sealed_auction",
    "nim",
]
AT_ONCE = [
    "goofspiel(num_cards=4)",
    "oshi_zumo(coins=5,size=1)",
    "matrix_rps",
    "matrix_pd",
    "blotto(coins=5)",
    "laser_tag(horizon=8)",
]
THREE = [
    "kuhn_poker(players=3)",
    "leduc_poker(players=3)",
    "goofspiel(num_cards=3,players=3,points_order=descending)",
    "matching_pennies_3p",
]
DRAWS_ITSELF = ["negotiation"]


@pytest.mark.parametrize("name", [*TURNS, *AT_ONCE, *THREE, *DRAWS_ITSELF])
def test_games_keep_the_promises_of_a_game(name: str) -> None:
    source = OpenSpiel(name=name, largest_tree=1_000)
    report = check_game(source, episodes=6, tables=3, max_steps=100, bot_seconds=0.01)
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("name", "exploitability"),
    [
        ("kuhn_poker", 0.458333),
        ("leduc_poker", 2.373611),
        ("matrix_rps", 0.0),
        ("tiny_hanabi", None),
        ("goofspiel(num_cards=3)", None),
        ("kuhn_poker(players=3)", None),
        ("first_sealed_auction(max_value=3)", None),
    ],
)
def test_exact_values_agree_with_openspiel(name: str, exploitability: float | None) -> None:
    from open_spiel.python.algorithms import exploitability as theirs
    from open_spiel.python.policy import UniformRandomPolicy

    root = resolve(f"openspiel:{name}").tree()
    assert root is not None
    tree = FlatTree.build(root)
    game = pyspiel.load_game(name)
    if game.get_type().dynamics == pyspiel.GameType.Dynamics.SIMULTANEOUS:
        game = pyspiel.convert_to_turn_based(game)
    assert tree.nash_conv(tree.uniform()) == pytest.approx(theirs.nash_conv(game, UniformRandomPolicy(game)))
    if exploitability is not None:
        assert tree.exploitability(tree.uniform()) == pytest.approx(exploitability, abs=1e-6)


def play(batch: GameBatch, seed: int) -> Any:
    """One random episode at every table; returns the first decision's observation."""
    rng = np.random.default_rng(seed)
    seeds = rng.integers(0, 2**63, batch.num_tables).astype(np.uint64)
    batch.reset(np.arange(batch.num_tables), seeds)
    first = next(iter(batch.view.observation[0].values())).copy()
    while not (batch.view.over | batch.view.truncated).all():
        actions, mask = allocate_actions(batch.spec, batch.num_tables), batch.view.legal[0]["move"]
        actions[0]["move"][:] = (rng.random(mask.shape) * mask).argmax(-1)
        batch.step(actions)
    return first


def test_chance_is_drawn_by_its_probabilities() -> None:
    batch = OpenSpiel(name="kuhn_poker").tables(3_000)
    first = play(batch, 0)[:, 0]
    cards = Counter(first[:, 2:5].argmax(axis=1).tolist())
    assert set(cards) == {0, 1, 2}
    assert all(900 < count < 1_100 for count in cards.values())


def test_critics_see_what_all_seats_see_also_at_a_truncation_and_in_trees() -> None:
    source = OpenSpiel(name="leduc_poker(players=3)", critic_state=True, max_length=3)
    (kind,) = source.spec.kinds
    size = source.spec.kinds[0].observation.arrays["information"].shape[0]
    assert kind.observation.critic == {"state": Vector(size=3 * size)}
    batch = source.tables(2)
    batch.reset(np.arange(2), np.array([3, 4], np.uint64))
    seen, whole = (batch.view.observation[0][name] for name in ("information", "critic.state"))
    while not batch.view.truncated.all():
        for table, seat in zip(*np.nonzero(batch.view.to_act), strict=True):
            np.testing.assert_array_equal(whole[table, seat].reshape(3, size)[seat], seen[table, seat])
            assert not np.array_equal(*whole[table, seat].reshape(3, size)[:2])  # two seats, two cards
        actions = allocate_actions(batch.spec, 2)
        actions[0]["move"][:] = batch.view.legal[0]["move"].argmax(-1)
        batch.step(actions)
    for table in range(2):
        np.testing.assert_array_equal(whole[table, 0].reshape(3, size), seen[table])
    root = OpenSpiel(name="kuhn_poker", critic_state=True).tree()
    assert root is not None
    dealt = root.child(0).child(2).observation()
    assert dealt["critic.state"].reshape(2, -1)[:, 2:5].argmax(-1).tolist() == [0, 2]


@pytest.mark.parametrize("name", ["kuhn_poker", "liars_dice(dice_sides=2)", "goofspiel(num_cards=3,imp_info=True)"])
def test_tables_from_the_tree_keep_the_promises_of_a_game(name: str) -> None:
    source = OpenSpiel(name=name, from_tree=True, critic_state=True)
    report = check_game(source, episodes=6, tables=3, bot_seconds=0.01)
    assert report.ok, str(report)
    batch = source.tables(2_000)
    assert isinstance(batch, TreeBatch)
    play(batch, 1)
    tree = FlatTree.build(source.tree())
    error = batch.view.score.std(axis=0) / 2_000**0.5
    value = random_score(OpenSpiel(name=name), 2_000)
    assert np.abs(batch.view.score.mean(axis=0) - value).max() < 6 * error.max()
    assert len(source.tables(1).view.observation[0]["critic.state"][0, 0]) == 2 * len(
        tree.observations["information"][0]
    )


def random_score(source: OpenSpiel, tables: int) -> Any:
    batch = source.tables(tables)
    play(batch, 2)
    return batch.view.score.mean(axis=0)


def test_a_tree_that_is_too_large_for_tables_says_so() -> None:
    with pytest.raises(ValueError, match="from_tree: leduc_poker has no game tree of at most 100 histories"):
        OpenSpiel(name="leduc_poker", from_tree=True, largest_tree=100).tables(1)


def test_critics_of_a_game_without_secrets_have_nothing_more_to_see() -> None:
    with pytest.raises(ValueError, match="critic_state: connect_four has no hidden information"):
        _ = OpenSpiel(name="connect_four", critic_state=True).spec


def test_rewards_between_moves_add_up_to_the_returns() -> None:
    batch = OpenSpiel(name="laser_tag(horizon=200)").tables(1)
    assert isinstance(batch, OpenSpielTables)
    rng, total, paid_early = np.random.default_rng(3), np.zeros(2), False
    batch.reset(np.array([0]), np.array([5], np.uint64))
    while not batch.view.over[0]:
        actions = allocate_actions(batch.spec, 1)
        actions[0]["move"][:] = rng.integers(0, 10, (1, 2))
        batch.step(actions)
        total += batch.view.reward[0]
        paid_early |= bool(batch.view.reward[0].any()) and not batch.view.over[0]
    assert paid_early
    assert batch.view.score[0].tolist() == pytest.approx(total.tolist())


def test_an_own_limit_cuts_off_and_shows_every_seat_that_acted() -> None:
    batch = OpenSpiel(name="connect_four", max_length=3).tables(2)
    play(batch, 1)
    assert batch.view.truncated.all()
    assert not batch.view.over.any()
    boards = batch.view.observation[0]["observation"]
    assert (boards[:, :, 2].sum(axis=(2, 3)) == 39).all()  # empty cells after three moves, for both seats


@pytest.mark.parametrize("name", ["bridge", "euchre", "spades", "tiny_bridge_4p"])
def test_partners_get_the_same(name: str) -> None:
    source = OpenSpiel(name=name)
    assert source.spec.teams == (0, 1, 0, 1)
    batch = source.tables(2)
    play(batch, 0)
    assert (batch.view.reward[:, :2] == batch.view.reward[:, 2:]).all()


def test_who_plays_together() -> None:
    assert OpenSpiel(name="tiny_hanabi").spec.teams == (0, 0)
    assert OpenSpiel(name="kuhn_poker(players=3)").spec.teams == (0, 1, 2)
    assert OpenSpiel(name="kuhn_poker(players=4)", teams=(0, 0, 1, 1)).spec.num_teams == 2
    with pytest.raises(ValueError, match="2 seats, but teams has 3"):
        _ = OpenSpiel(name="kuhn_poker", teams=(0, 1, 2)).spec
    assert not OpenSpiel(name="matrix_pd").spec.zero_sum


def test_what_is_seen() -> None:
    def part(**options: Any) -> Any:
        return OpenSpiel(**options).spec.kinds[0].observation.parts

    assert part(name="leduc_poker") == {"information": Vector(size=30)}
    assert part(name="leduc_poker", observation="observation") == {"observation": Vector(size=16)}
    assert part(name="connect_four") == {"observation": Planes(channels=3, height=6, width=7)}
    assert part(name="phantom_ttt") == {"information": Vector(size=108)}
    with pytest.raises(ValueError, match="connect_four has no information tensor; use observation='observ"):
        part(name="connect_four", observation="information")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("kuhn_pokr", "no game 'kuhn_pokr'; did you mean 'kuhn_poker'"),
        ("kuhn_poker(player=3)", "Unknown parameter 'player'. Available parameters are: players"),
        ("mfg_garnet", "mean-field"),
        ("colored_trails", "93,123 actions"),
        ("coin_game", "coin_game has no observation tensor"),
    ],
)
def test_games_that_cannot_be_played_are_refused(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason.replace("(", r"\(")):
        _ = resolve(f"openspiel:{name}").spec


def test_options_beside_those_in_the_name() -> None:
    source = OpenSpiel(name="goofspiel(players=3)", options={"num_cards": 4})
    assert source.spec.num_seats == 3
    assert source.spec.max_length == 4
    again = pickle.loads(pickle.dumps(source))
    assert again == source
    assert again.spec == source.spec


def test_trees_only_where_they_are_small_and_keys_are_known() -> None:
    assert OpenSpiel(name="leduc_poker", largest_tree=9_456).tree() is None
    assert OpenSpiel(name="leduc_poker", largest_tree=9_457).tree() is not None
    assert OpenSpiel(name="negotiation").tree() is None
    assert not isinstance(OpenSpiel(name="hanabi").tables(1), HasTrees)
    assert isinstance(OpenSpiel(name="connect_four").tables(1), HasTrees)
    assert not isinstance(OpenSpiel(name="connect_four", max_length=9).tables(1), HasTrees)


def test_tree_search_sees_a_win() -> None:
    source = OpenSpiel(name="connect_four")
    batch = source.tables(1)
    batch.reset(np.array([0]), np.array([0], np.uint64))
    for move in (3, 0, 3, 0, 3, 0):
        actions = allocate_actions(batch.spec, 1)
        actions[0]["move"][:] = move
        batch.step(actions)
    rng = np.random.default_rng(0)
    assert source.bots()["mcts"].act(batch, np.array([0]), np.array([0]), rng)["move"].tolist() == [3]
    assert "mcts" not in OpenSpiel(name="leduc_poker").bots()


def test_an_illegal_action_is_refused() -> None:
    batch = OpenSpiel(name="leduc_poker").tables(2)
    batch.reset(np.arange(2), np.arange(2, dtype=np.uint64))
    with pytest.raises(ValueError, match=r"table 0, seat 0: move 0 is not one of \[1, 2\]"):
        batch.step(allocate_actions(batch.spec, 2))


@pytest.mark.parametrize("observation", ["information", "observation"])
@pytest.mark.parametrize("name", ["phantom_ttt", "dark_hex", "dark_hex(num_rows=2,num_cols=3)"])
def test_phantom_games_are_as_openspiel_plays_them(name: str, observation: Any) -> None:
    source = OpenSpiel(name=name, observation=observation, critic_state=True)
    game, seen = source._game, source._seen
    won = three_in_a_row() if name == "phantom_ttt" else hex_connection(game.num_distinct_actions() // 3, 3)
    rng = np.random.default_rng(0)
    for _ in range(50):
        state, attempts, stones = game.new_initial_state(), ([], []), [0, 0]
        while not state.is_terminal():
            seat = state.current_player()
            moves = np.zeros((1, game.num_distinct_actions()), np.int8)
            moves[0, : len(attempts[seat])] = attempts[seat]
            shown, expected = seen.after_attempts(seat, moves), seen.of(state, seat)
            np.testing.assert_array_equal(shown[observation][0], expected[observation])
            assert shown["critic.state"].shape[1:] == expected["critic.state"].shape
            assert state.legal_actions() == [cell for cell in range(moves.shape[1]) if cell + 1 not in np.abs(moves)]
            cell = int(rng.choice(state.legal_actions()))
            fails = bool(stones[1 - seat] >> cell & 1)
            attempts[seat].append(-(cell + 1) if fails else cell + 1)
            stones[seat] |= 0 if fails else 1 << cell
            state.apply_action(cell)
            if not state.is_terminal():
                assert state.current_player() == (seat if fails else 1 - seat)
        assert [bool(won[seat, stones[seat]]) for seat in range(2)] == [gets > 0 for gets in state.returns()]


def test_dark_hex_is_as_exact_by_arrays_as_by_its_histories() -> None:
    """Its strings tell how often the other seat failed, which no seat sees."""
    source = OpenSpiel(name="dark_hex(num_rows=2,num_cols=2)")
    arrays, root = source.exact_tree(), source.tree()
    assert arrays is not None
    assert root is not None
    walked = FlatTree.build(root)
    assert len(walked.legal) == len(arrays.legal) == 70
    assert arrays.nash_conv(arrays.uniform()) == pytest.approx(walked.nash_conv(walked.uniform()), abs=1e-12) == 1.25


@pytest.mark.parametrize(
    "name", ["leduc_poker", "phantom_ttt(gameversion=abrupt)", "dark_hex(gameversion=adh)", "dark_hex(board_size=4)"]
)
def test_other_games_are_not_computed_by_arrays(name: str) -> None:
    assert OpenSpiel(name=name).exact_tree() is None


def test_a_player_of_dark_hex_is_measured_exactly() -> None:
    game = OpenSpiel(name="dark_hex(num_rows=2,num_cols=2)", critic_state=True)
    exact = exact_game(Experiment(name="x", game=game, budget=1))
    assert isinstance(exact.tree, PhantomTree)
    policy = ActorCritic(hidden=(8,), central_critic=True).build(game.spec.kinds[0], 3)
    root = game.tree()
    assert root is not None
    walked = ExactGame(root)
    nash_conv = walked.nash_conv(walked.probabilities(policy))
    assert nash_conv > 0.1
    assert exact.nash_conv(exact.probabilities(policy)) == pytest.approx(nash_conv, abs=1e-6)
