from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import published_laws
import pytest
from league_rows import match_of, result_of, started
from msgspec import structs
from published_laws import Law, Pool
from scipy.stats import chi2

from ludus.config import ConfigError, apply_overrides, decode, encode
from ludus.data.records import AnyEvent, MatchFinished, MatchIssued, MatchVoid, PlayerAdded, RunStarted
from ludus.league import presets
from ludus.league.league import League
from ludus.league.players import BY_HAND
from ludus.league.promotion import BySteps, ByWinRate
from ludus.league.rules import LeagueRules
from ludus.recipes import leduc

MAINS = ("main_0", "main_1")
LIVE = {"main": MAINS, "main_exploiter": ("main_exploiter",), "league_exploiter": ("league_exploiter",)}
HISTORY = {
    "main_0": ["main_0.1", "main_0.2", "main_0.3", "main_0.4", "main_0.5"],
    "main_1": ["main_1.1", "main_1.2", "main_1.3"],
    "main_exploiter": ["main_exploiter.1", "main_exploiter.2"],
    "league_exploiter": ["league_exploiter.1"],
}
STATES = {
    # Against its own past main_0 has a row that falls at the end: its last two say nothing about forgetting.
    "exploited": ((0.9, 0.6, 0.8, 0.5, 0.4), (0.2, 0.6)),
    "forgotten": ((0.9, 0.6, 0.8, 0.5, 0.4), (0.5, 0.6)),
    "neither": ((0.9, 0.75, 0.8, 0.5, 0.4), (0.5, 0.6)),
}
FULL: dict[str, tuple[Callable[..., LeagueRules], Callable[[Pool, str], Law]]] = {
    "alphastar": (presets.alphastar, published_laws.alphastar),
    "alphastar_pseudocode": (presets.alphastar_pseudocode, published_laws.alphastar_pseudocode),
    "di_star": (presets.di_star, published_laws.di_star),
}


def _pool(state: str) -> Pool:
    rng = np.random.default_rng(3)
    snapshots = [snapshot for history in HISTORY.values() for snapshot in history]
    learners = [player for players in LIVE.values() for player in players]
    rates = {(a, b): int(rng.integers(5, 96)) / 100 for a in learners for b in snapshots}
    own, exploiters = STATES[state]
    rates |= {("main_0", other): rate for other, rate in zip(HISTORY["main_0"], own, strict=True)}
    rates |= {("main_0", other): rate for other, rate in zip(HISTORY["main_1"], (0.4, 0.3, 0.2), strict=True)}
    rates |= {("main_0", other): rate for other, rate in zip(HISTORY["main_exploiter"], exploiters, strict=True)}
    # main_1 is too strong for main_0, and for the exploiter in the paper but not in the pseudocode.
    rates |= {("main_0", "main_1"): 0.25, ("main_1", "main_0"): 0.75}
    rates |= {("main_exploiter", "main_0"): 0.6, ("main_exploiter", "main_1"): 0.15}
    return Pool(LIVE, HISTORY, rates)


class Recorded:
    """A league with the events that it was fed, so that another can be made of them."""

    def __init__(self, rules: LeagueRules, seed: int = 7) -> None:
        self.rules, self.seed = rules, seed
        self.events: list[AnyEvent] = []
        self.league = self._new()
        self.feed(RunStarted(0))
        for event in self.league.initial_events():
            self.feed(event)

    def _new(self) -> League:
        return League(self.rules, num_teams=2, seats_per_team=(1, 1), seed=self.seed)

    def feed(self, event: AnyEvent) -> None:
        self.league.apply(event)
        self.events.append(event)

    def crash_and_resume(self) -> None:
        before = self.league.state_digest()
        self.league = self._new()
        for event in self.events:
            self.league.apply(event)
        assert self.league.state_digest() == before
        self.feed(RunStarted(self.league.starts))

    def freeze(self, *snapshots: str) -> None:
        for number, name in enumerate(snapshots):
            parent = name.rpartition(".")[0]
            self.feed(PlayerAdded(name, "frozen", parent=parent, model=f"{parent}:0:{number}", reason=BY_HAND))

    def play(self, a: str, b: str, wins: int, purpose: Any = "training", score: float = 0.0) -> None:
        match = match_of(a, b, id=self.league.matches.last_id + 1, purpose=purpose)
        self.feed(MatchIssued(match))
        result = result_of(match, (wins, 0, 100 - wins))
        self.feed(MatchFinished(structs.replace(result, score_sum=(100 * score, -100 * score))))

    def opponents(self, number: int) -> Iterator[tuple[str, str, int]]:
        """(player, opponent, match id) of so many matches, each open until the next; a crash halfway."""
        for count in range(number):
            if count == number // 2:
                self.crash_and_resume()
            match = self.league.next_match(self.league.matches.last_id + 1, tables=2, episodes_per_table=2)
            self.feed(MatchIssued(match))
            yield match.sides[0].players[0], match.sides[1].players[0], match.id
            if match.id in self.league.matches.open_matches:
                self.feed(MatchVoid(match.id, "test"))


def _league_of(rules: LeagueRules, pool: Pool) -> Recorded:
    recorded = Recorded(rules)
    recorded.freeze(*(snapshot for history in pool.history.values() for snapshot in history))
    for (a, b), rate in pool.win_rates.items():
        if (b, a) not in pool.win_rates or a < b:
            recorded.play(a, b, round(100 * rate))
    return recorded


def p_value(observed: Counter[str], expected: Law) -> float:
    """Chi-square of the counts; an opponent that the law rules out is decisive."""
    if any(expected.get(other, 0.0) <= 0 for other in observed):
        return 0.0
    cells = [(observed[other], count) for other, count in expected.items() if count > 0]
    statistic = sum((seen - count) ** 2 / count for seen, count in cells)
    return float(chi2.sf(statistic, len(cells) - 1)) if len(cells) > 1 else float(statistic < 1e-9)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", FULL)
def test_every_role_meets_opponents_by_the_published_law(name: str, state: str) -> None:
    preset, law_of = FULL[name]
    pool = _pool(state)
    recorded = _league_of(preset(mains=2, league_exploiters=1), pool)
    for player in recorded.league.standings:
        assert recorded.league.opponent_law(player) == pytest.approx(law_of(pool, player), abs=1e-12)
    observed: dict[str, Counter[str]] = {player: Counter() for player in recorded.league.standings}
    for player, opponent, _ in recorded.opponents(3000):
        observed[player][opponent] += 1
    for player, counts in observed.items():
        assert counts.total() > 700
        law = {other: probability * counts.total() for other, probability in law_of(pool, player).items()}
        assert p_value(counts, law) > 0.001, player


@pytest.mark.parametrize(
    ("name", "wrong", "state"),
    [
        ("alphastar", published_laws.alphastar_pseudocode, "exploited"),
        ("alphastar_pseudocode", published_laws.alphastar, "forgotten"),
        ("di_star", published_laws.alphastar, "neither"),
    ],
)
def test_a_wrong_law_is_noticed(name: str, wrong: Callable[[Pool, str], Law], state: str) -> None:
    pool = _pool(state)
    recorded = _league_of(FULL[name][0](mains=2, league_exploiters=1), pool)
    counts = Counter(opponent for player, opponent, _ in recorded.opponents(4000) if player == "main_0")
    law = {other: probability * counts.total() for other, probability in wrong(pool, "main_0").items()}
    assert p_value(counts, law) < 0.001


def test_the_three_states_take_the_three_branches_of_verification() -> None:
    laws = [published_laws.verification(_pool(state), "main_0", "main_0") for state in STATES]
    assert [set(law) for law in laws] == [
        {"main_exploiter.1", "main_exploiter.2"},
        {"main_0.1", "main_0.2", "main_0.3"},
        {"main_0"},
    ]


SNAPSHOTS = [f"main.{number}" for number in range(1, 5)]
RATES = dict(zip(SNAPSHOTS, (0.9, 0.2, 0.5, 0.7), strict=True))
ONE = Pool({"main": ["main"]}, {"main": SNAPSHOTS}, {("main", name): rate for name, rate in RATES.items()})
# Rock, paper, scissors with stakes 1 (paper takes rock), 2 (scissors takes paper), 3 (rock takes scissors):
# each is played as often as the stake that it has no part in. The fourth loses to all.
STAKES = {(1, 0): 0.1, (2, 1): 0.2, (0, 2): 0.3, (0, 3): 0.5, (1, 3): 0.5, (2, 3): 0.5}
CYCLE = dict(zip(SNAPSHOTS, (2 / 6, 3 / 6, 1 / 6, 0.0), strict=True))


@pytest.mark.parametrize(
    ("rules", "law"),
    [
        (presets.self_play(), {"main": 1.0}),
        (presets.fsp(), published_laws.even(SNAPSHOTS)),
        (presets.fsp(self_play=0.4), {**published_laws.even(SNAPSHOTS), "main": 0.4}),
        (presets.pfsp(), published_laws.pfsp(ONE, "main", SNAPSHOTS, published_laws.squared)),
        (presets.pfsp(weighting="variance"), published_laws.pfsp(ONE, "main", SNAPSHOTS, published_laws.variance)),
        (presets.psro(), CYCLE),
        (presets.psro(meta_solver="uniform"), published_laws.even(SNAPSHOTS)),
        (presets.psro(explore=0.2, self_play=0.2), None),
    ],
)
def test_leagues_of_one_learning_player(rules: LeagueRules, law: Law | None) -> None:
    if law is None:
        law = {name: 0.8 * (0.8 * share + 0.05) for name, share in CYCLE.items()} | {"main": 0.2}
    elif "main" in law and len(law) > 1:
        law = {name: 0.4 if name == "main" else 0.6 * share for name, share in law.items()}
    recorded = Recorded(rules)
    recorded.freeze(*SNAPSHOTS)
    for name, rate in RATES.items():
        recorded.play("main", name, round(100 * rate))
    for (a, b), stake in STAKES.items():
        recorded.play(SNAPSHOTS[a], SNAPSHOTS[b], 60, "evaluation", score=stake)
    assert recorded.league.opponent_law("main") == pytest.approx(law, abs=1e-6)
    counts = Counter(opponent for _, opponent, _ in recorded.opponents(2000))
    expected = {other: 2000 * probability for other, probability in law.items() if probability > 1e-6}
    assert p_value(counts, expected) > 0.001
    wrong = {other: 2000.0 / (len(SNAPSHOTS) + 1) for other in (*SNAPSHOTS, "main")}
    assert p_value(counts, wrong) < 0.001


def test_openai_five_meets_its_past_by_quality() -> None:
    """The law moves with every win, so the expected counts are added up from match to match."""
    step, self_play = 0.05, 0.5
    recorded = Recorded(presets.openai_five(step=step, self_play=self_play))
    recorded.freeze(*SNAPSHOTS)
    qualities = dict.fromkeys(SNAPSHOTS, 0.0)
    observed, expected = Counter[str](), Counter[str]()
    flat = Counter[str]()
    for number, (_, opponent, match_id) in enumerate(recorded.opponents(3000)):
        weights = {name: float(np.exp(quality)) for name, quality in qualities.items()}
        law = {name: weight / sum(weights.values()) for name, weight in weights.items()}
        observed[opponent] += 1
        expected.update({"main": self_play} | {k: (1 - self_play) * p for k, p in law.items()})  # type: ignore[dict-item]
        flat.update(dict.fromkeys(qualities, (1 - self_play) / len(qualities)) | {"main": self_play})  # type: ignore[arg-type]
        if opponent != "main":
            wins = round(4 * RATES.get(opponent, 1.0))
            match = recorded.league.matches.open_matches[match_id].match
            recorded.feed(MatchFinished(result_of(match, (wins, 0, 4 - wins))))
            qualities[opponent] -= step / (len(qualities) * law[opponent]) * wins / 4
        if number == 1500:
            recorded.freeze("main.9")
            qualities["main.9"] = max(qualities.values())
    assert recorded.league.candidates.qualities["main"] == pytest.approx(qualities)
    assert p_value(observed, dict(expected)) > 0.001
    assert p_value(observed, dict(flat)) < 0.001


PUBLISHED = 2_000_000_000


def test_the_paper_and_the_pseudocode_disagree_where_they_say() -> None:
    paper, code = presets.alphastar().roles, presets.alphastar_pseudocode().roles
    assert list(paper) == list(code) == ["main", "main_exploiter", "league_exploiter"]
    assert [role.count for role in paper.values()] == [role.count for role in code.values()] == [1, 1, 2]
    assert [role.reset_probability for role in paper.values()] == [0.0, 1.0, 0.25]
    assert [role.reset_probability for role in code.values()] == [0.0, 1.0, 0.25]
    assert [role.initial_snapshot for role in paper.values()] == [True, False, False]
    assert paper["main"].promotion == BySteps(every=PUBLISHED)
    assert paper["main_exploiter"].promotion == ByWinRate(
        min_decisions=1, max_decisions=2 * PUBLISHED, threshold=0.7, against="main"
    )
    assert paper["league_exploiter"].promotion == ByWinRate(min_decisions=1, max_decisions=PUBLISHED, threshold=0.7)
    both = ByWinRate(min_decisions=PUBLISHED, max_decisions=2 * PUBLISHED, threshold=0.7)
    assert code["main"].promotion == code["league_exploiter"].promotion == both
    assert code["main_exploiter"].promotion == replace(both, against="main")


def test_roles_can_be_left_out_and_started_from_a_model() -> None:
    for preset in (presets.alphastar, presets.alphastar_pseudocode, presets.di_star):
        rules = preset(main_exploiters=0, league_exploiters=0, start="clone:0:3", bots=("random",))
        league = started(rules)
        assert list(league.standings) == ["main"]
        assert league.players["main"].model == "clone:0:3"
        assert league.opponent_law("main") == pytest.approx({"main": 1.0})


def test_main_players_may_meet_bots() -> None:
    league = started(presets.alphastar(main_exploiters=0, league_exploiters=0, bots=("random",), meet_bots=True))
    assert league.opponent_law("main") == pytest.approx({"main": 0.5, "random": 0.5})


def test_value_only_training_follows_a_reset_of_exploiters() -> None:
    roles = presets.di_star(value_only_after_reset=4000).roles
    assert [role.after_reset.value_only_decisions for role in roles.values()] == [0, 4000, 4000]


EXPERIMENT = leduc.experiment()


@pytest.mark.parametrize(
    "name", ["alphastar", "alphastar_pseudocode", "openai_five", "di_star", "fsp", "pfsp", "psro", "self_play"]
)
def test_a_preset_is_chosen_by_name_and_kept_in_full(name: str) -> None:
    chosen = apply_overrides(EXPERIMENT, {"league": name})
    assert chosen.league == getattr(presets, name)()
    assert decode(encode(chosen)) == chosen
    scaled = apply_overrides(EXPERIMENT, {"league": f"{{type: {name}, period: 5e5, bots: [random]}}"})
    assert scaled.league == getattr(presets, name)(period=500_000, bots=("random",))


def test_a_preset_may_be_changed_and_may_be_a_users_function(tmp_path: Any) -> None:
    changed = apply_overrides(EXPERIMENT, {"league": "alphastar", "league.roles.main.promotion.every": "1e5"})
    assert changed.league.roles["main"].promotion == BySteps(every=100_000)
    file = tmp_path / "mine.py"
    file.write_text(
        "from ludus.league.presets import fsp\nfrom ludus.league.rules import LeagueRules\n"
        "def mine(*, period: int = 7) -> LeagueRules:\n    return fsp(period=period)\n"
    )
    assert apply_overrides(EXPERIMENT, {"league": f"{file}:mine"}).league == presets.fsp(period=7)
    given = apply_overrides(EXPERIMENT, {"league": {"type": f"{file}:mine", "period": 9}})
    assert given.league == presets.fsp(period=9)


@pytest.mark.parametrize(
    ("league", "message"),
    [
        ("alphastr", "did you mean 'alphastar'"),
        ("{type: psro, meta_solver: nahs}", "did you mean 'nash'"),
        ("{type: psro, perod: 3}", "did you mean 'period'"),
        ("{type: fsp, period: often}", "league.period: expected int"),
    ],
)
def test_a_misspelt_preset_is_answered_with_the_nearest(league: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        apply_overrides(EXPERIMENT, {"league": league})
