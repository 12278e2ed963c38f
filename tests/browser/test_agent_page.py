"""The page of `ludus export --page`, opened from the disk: its moves are those of the agent in Python, and a person can
play it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from test_play_page import small, trained

import ludus
from ludus.data.game_tree import CHANCE, OVER
from ludus.data.specs import ActionSpec, Choice, ObservationSpec, Planes, SeatKind, Vector
from ludus.experiment import Experiment
from ludus.export.page import SHARED, STATIC, export_page, page_network
from ludus.export.player import ExportFailed
from ludus.games.builtin.kuhn import KuhnState
from ludus.games.builtin.leduc import LeducState
from ludus.games.game import GameSource, allocate_actions
from ludus.models.alphastar import AlphaStar
from ludus.models.network_policy import ActorCritic, NetworkPolicy
from ludus.models.operators import ACTIVATIONS
from ludus.observe.report import one_file_page
from ludus.recipes import connect_four, kuhn, leduc
from ludus.store.run_folder import RunFolder

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [pytest.mark.slow, pytest.mark.ci]
playwright = pytest.importorskip("playwright.sync_api", reason="pip install -e '.[browser]' adds playwright")
expect = playwright.expect
OpenPage = Callable[..., "Page"]
EPISODES = 40


def tic_tac_toe() -> Experiment:
    return ludus.load_experiment("tic_tac_toe")


RUNS: dict[str, Callable[[], Experiment]] = {
    "connect_four": lambda: small(connect_four.experiment()),
    "connect_four with memory": lambda: replace(
        small(connect_four.experiment()), model=ActorCritic(hidden=(16,), activation="gelu", memory=8)
    ),
    "tic_tac_toe": lambda: small(tic_tac_toe()),
}


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("run") / "run", RUNS[request.param]())


def played(game: GameSource, seed: int) -> list[tuple[list[int], list[dict[str, list[float]]]]]:
    """Random episodes: their moves, and what the seat to move saw before each."""
    rng = np.random.default_rng(seed)
    tables = game.tables(1)
    episodes = []
    for episode in range(EPISODES):
        tables.reset(np.zeros(1, np.int64), np.array([episode], np.uint64))
        moves: list[int] = []
        seen: list[dict[str, list[float]]] = []
        while not tables.view.over[0]:
            seat = len(moves) % 2
            seen.append({name: array[0, seat].tolist() for name, array in tables.view.observation[0].items()})
            moves.append(int(rng.choice(np.flatnonzero(tables.view.legal[0]["move"][0, seat]))))
            actions = allocate_actions(game.spec, 1)
            actions[0]["move"][0, seat] = moves[-1]
            tables.step(actions)
        episodes.append((moves, seen))
    return episodes


SCRIPT = """
([moves, uniforms]) => {
  const game = ludus.newGame(), agent = ludus.agents[0], found = [];
  agent.reset();
  moves.forEach((move, ply) => {
    const seen = game.observation(game.seat), legal = game.legal();
    const probabilities = agent.networks[game.seat].probabilities(seen, legal);
    found.push({ seen, legal, probabilities, greedy: ludus.choose(probabilities),
      drawn: ludus.choose(probabilities, uniforms[ply]) });
    game.play(move);
  });
  return { found, over: game.over, winner: game.winner, line: game.view().line.length };
}
"""


def test_moves_are_those_of_python(run: RunFolder, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(export_page(run, ["main"], tmp_path / "page.html").as_uri())
    greedy = ludus.load_agent(run.path, "main", greedy=True)
    game = ludus.load_experiment(run.path).game
    rng = np.random.default_rng(1)
    positions = 0
    for moves, expected in played(game, seed=0):
        uniforms = rng.random((len(moves), 1), np.float32)
        answer: dict[str, Any] = page.evaluate(SCRIPT, [moves, uniforms[:, 0].tolist()])
        assert answer["over"]
        greedy.reset()
        memory: dict[int, Any] = {}
        for ply, (ours, seen) in enumerate(zip(answer["found"], expected, strict=True)):
            assert ours["seen"] == seen
            parts = {name: np.array(values, np.float32) for name, values in seen.items()}
            legal = np.array(ours["legal"])
            assert ours["greedy"] == greedy.act(parts, legal, seat=ply % 2)
            rows = {name: array[None] for name, array in parts.items()}
            (policy,) = greedy._decider._policies  # type: ignore[attr-defined]
            before = memory.get(ply % 2, policy.initial_state(1))
            acted = policy.act(rows, {"move": legal[None]}, before, uniforms[ply][None])
            memory[ply % 2] = acted.state
            assert ours["drawn"] == acted.action["move"][0]
            assert np.log(ours["probabilities"][ours["drawn"]]) == pytest.approx(acted.log_prob[0, 0], abs=1e-5)
            positions += 1
    assert positions > 200


def test_a_person_plays(run: RunFolder, open_page: OpenPage, tmp_path: Path) -> None:
    page = open_page(export_page(run, ["main"], tmp_path / "page.html").as_uri())
    expect(page.locator("#status")).to_have_text("your move")
    page.locator("#thoughts").check()
    for _ in range(42):
        if page.locator("#status").inner_text() != "your move":
            break
        buttons = page.locator("#table button:not([disabled])")
        buttons.nth(0).click()
    expect(page.locator("#status")).to_have_text(re.compile("you win|you lose|a draw"))
    assert page.locator("#told .share").count() > 0
    page.locator("#seat").select_option("1")
    page.locator("#new").click()
    expect(page.locator("#status")).to_have_text("your move")
    expect(page.locator(".game-stone")).to_have_count(1)


KUHN_SCRIPT = """
([cards, moves]) => {
  const game = ludus.newGame();
  game.deal(cards);
  moves.forEach((move) => game.play(move));
  const shown = { over: game.over, winner: game.winner, view: game.view(0) };
  if (game.over) return shown;
  const seen = game.observation(game.seat);
  const probabilities = ludus.agents[0].networks[game.seat].probabilities(seen, game.legal());
  return { ...shown, seat: game.seat, seen, probabilities };
}
"""


def test_every_state_of_kuhn(open_page: OpenPage, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", small(kuhn.experiment()))
    page = open_page(export_page(folder, ["main"], tmp_path / "page.html").as_uri())
    (policy,) = ludus.load_agent(folder.path, "main")._decider._policies  # type: ignore[attr-defined]
    waiting = [KuhnState(2, (one, other)) for one in range(3) for other in range(3) if one != other]
    states = 0
    while waiting:
        state = waiting.pop()
        found = page.evaluate(KUHN_SCRIPT, [list(state.cards), list(state.moves)])
        states += 1
        if state.seat() == OVER:
            assert found["over"]
            assert state.returns()[found["winner"]] > 0
            assert [hand["card"] for hand in found["view"]["hands"]] == ["JQK"[card] for card in state.cards]
            continue
        seen = state.observation()
        assert (found["over"], found["seat"]) == (False, state.seat())
        assert found["view"]["hands"][1]["card"] is None
        assert found["seen"] == {"information": seen["information"].tolist()}
        rows = {"information": seen["information"][None]}
        uniform = np.array([[0.5]], np.float32)
        acted = policy.act(rows, {"move": np.ones((1, 2), bool)}, {}, uniform, want_value=False)
        assert np.log(found["probabilities"][acted.action["move"][0]]) == pytest.approx(acted.log_prob[0, 0], abs=1e-5)
        waiting += [state.child(action) for action in state.legal_actions()]
    assert states == 6 * 9
    expect(page.locator("#way")).to_have_value("drawn")
    for _ in range(2):
        if page.locator("#status").inner_text() == "your move":
            page.locator("#options button").nth(0).click()
    expect(page.locator("#status")).to_have_text(re.compile("you win|you lose"))


LEDUC_SCRIPT = """
(histories) => histories.map(([cards, moves]) => {
  const game = ludus.newGame();
  game.deal(cards);
  moves.forEach((move) => game.play(move));
  const shown = { over: game.over, winner: game.winner, view: game.view(0), legal: game.legal() };
  if (game.over) return shown;
  const seen = game.observation(game.seat);
  const probabilities = ludus.agents[0].networks[game.seat].probabilities(seen, shown.legal);
  return { ...shown, seat: game.seat, seen, probabilities };
})
"""
LEDUC_DEALS = [(0, 2, 4), (0, 2, 1), (2, 0, 1), (5, 4, 0), (4, 1, 5), (3, 4, 2)]
"""Won by the higher card and by a pair, in both seats, and a draw."""


def test_every_state_of_leduc(open_page: OpenPage, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", small(leduc.experiment()))
    page = open_page(export_page(folder, ["main"], tmp_path / "page.html").as_uri())
    (policy,) = ludus.load_agent(folder.path, "main")._decider._policies  # type: ignore[attr-defined]
    winners = set()
    for deal in LEDUC_DEALS:
        states = [LeducState(deal[:2])]
        for state in states:  # which grows
            if state.seat() == CHANCE:
                states.append(state.child(deal[2]))
            elif state.seat() != OVER:
                states += [state.child(action) for action in state.legal_actions()]
        states = [state for state in states if state.seat() != CHANCE]
        answers = page.evaluate(LEDUC_SCRIPT, [[list(deal), [*state.rounds[0], *state.rounds[1]]] for state in states])
        for state, found in zip(states, answers, strict=True):
            assert [hand["stake"] for hand in found["view"]["hands"]] == state.stakes()
            card = "JQK"[deal[2] // 2] + "♠♥"[deal[2] % 2]
            assert found["view"]["public"] == (card if len(state.cards) == 3 else "")
            assert found["over"] == (state.seat() == OVER)
            if found["over"]:
                returns = [*state.returns()]
                assert found["winner"] == (None if returns == [0.0, 0.0] else int(np.argmax(returns)))
                winners.add(found["winner"])
                continue
            assert found["view"]["hands"][1]["card"] is None
            assert (found["seat"], np.flatnonzero(found["legal"]).tolist()) == (
                state.seat(),
                sorted(state.legal_actions()),
            )
            seen = state.observation()
            assert found["seen"] == {"information": seen["information"].tolist()}
            rows, uniform = {"information": seen["information"][None]}, np.array([[0.5]], np.float32)
            acted = policy.act(rows, {"move": np.array([found["legal"]])}, {}, uniform, want_value=False)
            share = found["probabilities"][acted.action["move"][0]]
            assert np.log(share) == pytest.approx(acted.log_prob[0, 0], abs=1e-5)
    assert winners == {None, 0, 1}
    for _ in range(8):
        if page.locator("#status").inner_text() == "your move":
            page.get_by_role("button", name=re.compile("check|call")).click()
    expect(page.locator("#status")).to_have_text(re.compile("you win|you lose|a draw"))


def test_levels_are_chosen_on_the_page(open_page: OpenPage, tmp_path: Path) -> None:
    folder = trained(tmp_path / "run", small(tic_tac_toe()))
    page = open_page(export_page(folder, ["main", "main"], tmp_path / "page.html").as_uri())
    expect(page.locator("#agent option")).to_have_count(2)
    assert page.locator("#agent option").nth(0).inner_text().startswith("level 1: main")


PLANES = SeatKind(
    name="planes",
    observation=ObservationSpec(
        parts={
            "facts": Vector(size=3),
            "screen": Planes(channels=2, height=18, width=5, dtype="uint8"),
            "map": Planes(channels=3, height=4, width=7),
        }
    ),
    action=ActionSpec(heads={"move": Choice(num=5)}),
)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_networks_are_evaluated_as_in_python(activation: Any, open_page: OpenPage, tmp_path: Path) -> None:
    """Convolutions of stride 1 and 2 over bytes and numbers, linear layers and a memory."""
    model = ActorCritic(hidden=(16, 16), channels=(4, 6), memory=8, activation=activation)
    policy = model.build(PLANES, seed=1)
    facts = {"rules": {"game": "tic_tac_toe"}, "agents": [{"name": "x", "networks": [page_network(policy)]}]}
    facts["agents"][0] |= {"network_of_seat": [0, 0], "rating": None}  # type: ignore[index]
    (tmp_path / "page.html").write_text(one_file_page(STATIC / "agent_page.html", [STATIC, *SHARED], {"agents": facts}))
    page = open_page((tmp_path / "page.html").as_uri())
    rng = np.random.default_rng(0)
    state = policy.initial_state(1)
    for _ in range(5):
        seen = {
            "facts": rng.standard_normal((1, 3)).astype(np.float32) * 3,
            "screen": rng.integers(256, size=(1, 2, 18, 5)).astype(np.uint8),
            "map": rng.standard_normal((1, 3, 4, 7)).astype(np.float32),
        }
        legal = np.array([[True, True, False, True, True]])
        acted = policy.act(seen, {"move": legal}, state, np.array([[0.5]], np.float32))
        state = acted.state
        given = {name: array[0].ravel().tolist() for name, array in seen.items()}
        shares = page.evaluate(
            "([seen, legal]) => ludus.agents[0].networks[0].probabilities(seen, legal)", [given, legal[0].tolist()]
        )
        assert shares[2] == 0.0
        assert np.log(shares[acted.action["move"][0]]) == pytest.approx(acted.log_prob[0, 0], abs=1e-5)


def test_what_a_page_cannot_evaluate_is_named(tmp_path: Path) -> None:
    policy: NetworkPolicy = AlphaStar.mini().build(PLANES, seed=0)
    with pytest.raises(ExportFailed, match="AlphaStarEncoder over entities or maps; export ONNX with --to"):
        page_network(policy)
