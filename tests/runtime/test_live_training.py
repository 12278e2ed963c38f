"""Edits of a league that trains in the serial runtime: they happen, are in force and come back by replay."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from edited_runs import Asker, events_of, folder_of, metrics_of, replayed, tiny, train

from ludus.cli.control import ask
from ludus.data.records import (
    AddPlayer,
    ChangeSettings,
    FreezePlayer,
    LearnerProgress,
    MatchVoid,
    PlayerAdded,
    PlayerRemoved,
    PlayerReset,
    RemovePlayer,
    ResetPlayer,
    SettingsChanged,
)
from ludus.data.schedules import Linear
from ludus.runtime.assemble import load_experiment
from ludus.runtime.serial import serial_training
from ludus.runtime.settings import effective
from ludus.store import run_control as requests
from ludus.store.run_control import Asked, EditAnswer

BRANCHES = "league.roles.main.matchmaking.branches"


@pytest.fixture(autouse=True)
def _look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "LOOK_EVERY_S", 0.0)


def change(player: str | None = None, **settings: str) -> ChangeSettings:
    """Paths are written with __ for a dot."""
    return ChangeSettings(settings={path.replace("__", "."): text for path, text in settings.items()}, player=player)


def test_settings_change_from_one_update_to_the_next(tmp_path: Path) -> None:
    asker = Asker(
        [
            (400, change(learner__learning_rate="0.001", algorithm__entropy="0.7")),
            (1_000, change(budget="2400", checkpoint_every="100")),
        ]
    )
    training = train(tmp_path / "run", tiny(), asker)
    assert asker.refusals == []
    rates = [row["main/learning_rate"] for row in metrics_of(tmp_path / "run")]
    assert rates[0] == 3e-4
    assert rates[-1] == 0.001
    assert sorted(rates) == rates, "it changes once and stays"
    assert training.experiment.algorithm.entropy == 0.7  # type: ignore[attr-defined]
    assert 2_400 <= training.learner.decisions < 2_800, "the new budget holds"
    assert training.league.state_digest() == replayed(tmp_path / "run").state_digest()


def test_a_larger_budget_is_used_even_while_the_end_is_measured(tmp_path: Path) -> None:
    asked: list[Asked] = []

    def ask_late(worker: object, step: object) -> object:
        if training.learner.decisions >= 600 and not asked:
            asked.append(Asked(training.folder.requests, change(budget="1200")))
        return step()  # type: ignore[operator]

    folder = folder_of(tmp_path / "run", tiny(budget=600))
    watched = replace(load_experiment(folder), middleware=(ask_late,))  # type: ignore[arg-type]
    with folder.lock(), closing(serial_training(watched, folder)) as training:
        training.run()
        assert training.learner.decisions >= 1_200


def test_a_player_joins_learns_and_leaves(tmp_path: Path) -> None:
    own = {"learner.learning_rate": "0.002"}
    asker = Asker(
        [
            (600, AddPlayer(player="second", role="main", source="main", settings=own)),
            (2_000, FreezePlayer(player="second")),
            (2_400, RemovePlayer(player="main", reason="had its time")),
        ]
    )
    training = train(tmp_path / "run", tiny(budget=4_000), asker)
    assert asker.refusals == []
    path = tmp_path / "run"
    events = events_of(path)
    (joined,) = (event for event in events if isinstance(event, PlayerAdded) and event.player == "second")
    assert joined.parent == "main"
    assert joined.model is not None
    assert joined.model.startswith("main:0:")
    assert PlayerRemoved("main", "had its time") in events
    assert {event.reason for event in events if isinstance(event, MatchVoid)} <= {"league edited"}
    last = metrics_of(path)[-1]
    assert last["second/learning_rate"] == 0.002
    assert list(training.league.standings) == ["second"]
    heard = {event.player: event.decisions for event in events if isinstance(event, LearnerProgress)}
    assert heard["second"] > 1_000
    assert heard["main"] > 1_000
    assert training.learner.decisions == sum(heard.values()) >= 4_000, "all of it is of the budget"
    assert training.league.state_digest() == replayed(path).state_digest()


def test_nothing_is_learned_twice_or_lost_when_somebody_joins(tmp_path: Path) -> None:
    train(
        tmp_path / "run",
        tiny(),
        Asker([(700, AddPlayer(player="second", role="main")), (1_500, RemovePlayer(player="second"))]),
    )
    before: dict[str, LearnerProgress] = {}
    for event in events_of(tmp_path / "run"):
        if isinstance(event, LearnerProgress):
            last = before.get(event.player, event)
            assert event.decisions >= last.decisions
            assert (event.incarnation, event.step) >= (last.incarnation, last.step)
            before[event.player] = event


def test_by_hand_players_are_frozen_and_reset(tmp_path: Path) -> None:
    asker = Asker(
        [
            (600, FreezePlayer(player="main")),
            (800, AddPlayer(player="champion", role="frozen", source="main@latest")),
            (1_000, ResetPlayer(player="main", source="champion")),
            (1_400, RemovePlayer(player="champion")),
            (1_600, AddPlayer(player="equilibrium", role="scripted")),
        ]
    )
    training = train(tmp_path / "run", tiny(), asker)
    assert asker.refusals == []
    events = events_of(tmp_path / "run")
    snapshot = next(event for event in events if isinstance(event, PlayerAdded) and event.reason == "by hand")
    assert snapshot.parent == "main"
    champion = training.league.players["champion"]
    assert champion.model == snapshot.model
    (reset,) = (event for event in events if isinstance(event, PlayerReset))
    assert (reset.player, reset.model, reset.reason) == ("main", champion.model, "by hand")
    assert training.learner.players["main"].incarnation == reset.incarnation
    assert "champion" not in training.league.candidates
    assert "equilibrium" in training.league.candidates
    assert training.league.state_digest() == replayed(tmp_path / "run").state_digest()


def test_rules_and_roles_change(tmp_path: Path) -> None:
    role = "{matchmaking: {type: Live, role: main}, promotion: {type: BySteps, every: 500}}"
    asker = Asker(
        [
            (400, ChangeSettings(settings={f"{BRANCHES}.0.0": "1", f"{BRANCHES}.1.0": "0"})),
            (500, ChangeSettings(settings={"league.roles.+exploiter": role})),
            (900, change(evaluation__opponents="random,equilibrium")),
        ]
    )
    training = train(tmp_path / "run", tiny(), asker)
    assert asker.refusals == []
    assert asker.answers[1].done.endswith("; exploiter joined")
    assert training.league.standings["exploiter"].decisions > 500
    assert training.league.opponent_law("main")["main"] == 1.0
    measured = training.league.payoffs.evaluation
    newest = training.league.candidates.frozen()[-1]
    assert measured.games(newest, "equilibrium") > 0
    assert training.league.state_digest() == replayed(tmp_path / "run").state_digest()


REFUSED = [
    (change(learner__batch_size="9"), "learner.batch_size cannot change"),
    (change(learner__learning_rate="many"), "many"),
    (change("mian", learner__epochs="2"), "'main'"),
    (ChangeSettings(settings={f"{BRANCHES}.0.0": "0.9"}), "sum to 1"),
    (ChangeSettings(settings={"league.roles.+new": "{matchmaking: {type: Live, role: mian}}"}), "'main'"),
    (ChangeSettings(settings={"league.roles.+new": "{start: other:0:0}"}), "other"),
    (ChangeSettings(settings={"league.roles.+new": "{start: main@latest}"}), "no model id"),
    (ChangeSettings(settings={"league.roles.+main": "{count: 3}"}), "there is a role 'main'"),
    (ChangeSettings(settings={"league.roles.+equilibrium": "{}"}), "name of a bot"),
    (AddPlayer(player="equilibrium", role="main"), "is a bot of the game"),
    (AddPlayer(player="equilibrium", role="frozen", source="main.1"), "is a bot of the game"),
    (AddPlayer(player="main", role="main"), "never used again"),
    (AddPlayer(player="x", role="mian"), "'main'"),
    (AddPlayer(player="x.1", role="main"), "must not contain '.'"),
    (AddPlayer(player="x" * 60, role="main"), "too long"),
    (AddPlayer(player="-x", role="main"), "refused"),
    (AddPlayer(player="x", role="main", source="mainn"), "main"),
    (AddPlayer(player="x", role="main", settings={"budget": "9"}), "budget"),
    (AddPlayer(player="x", role="frozen"), "--from"),
    (AddPlayer(player="x", role="frozen", source="random"), "bot"),
    (AddPlayer(player="equilibrum", role="scripted"), "'equilibrium'"),
    (RemovePlayer(player="main"), "last learning player"),
    (RemovePlayer(player="mian"), "'main'"),
    (RemovePlayer(player="random"), "evaluation.opponents"),
    (FreezePlayer(player="random"), "unknown learning player 'random'"),
    (ResetPlayer(player="main", source="nothing:0:0"), "nothing:0:0"),
]


def test_what_is_refused_leaves_no_trace(tmp_path: Path) -> None:
    asker = Asker([(0, edit) for edit, _ in REFUSED], stop_at=3_000)
    train(tmp_path / "run", tiny(budget=10**9, checkpoint_every=10**9), asker)
    named = [part for _, part in REFUSED]
    assert [part for part, told in zip(named, asker.refusals, strict=True) if part not in told] == []
    kinds = {type(event) for event in events_of(tmp_path / "run")}
    assert not kinds & {SettingsChanged, PlayerRemoved, PlayerReset}
    assert {player.id for player in replayed(tmp_path / "run").players.values() if not player.frozen} == {
        *("main", "random")
    }


@pytest.mark.parametrize(("edit", "named"), REFUSED)
def test_a_stopped_run_refuses_the_same(stopped: Path, edit: ChangeSettings, named: str) -> None:
    before = events_of(stopped)
    answer, is_training = ask(folder_of(stopped), edit)
    assert not is_training
    assert answer.refused is not None
    assert named in answer.refused
    assert events_of(stopped) == before


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stopped") / "run"
    train(path, tiny(), Asker(stop_at=1_200))
    return path


def test_a_stopped_run_is_edited_and_goes_on_with_it(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(path, tiny(), Asker(stop_at=1_200))
    folder = folder_of(path)
    for edit in (
        change(learner__learning_rate="0.001", budget="2400"),
        FreezePlayer(player="main"),
        AddPlayer(player="second", role="main", source="main"),
        ResetPlayer(player="main", source="main.1"),
    ):
        answer, is_training = ask(folder, edit)
        assert (answer.refused, is_training) == (None, False)
    written = load_experiment(folder)
    before = replayed(path)
    promised = effective(written, before)
    assert (promised.learner.learning_rate, promised.budget) == (0.001, 2_400)
    with folder.lock(), closing(serial_training(written, folder)) as training:
        assert training.experiment == promised
        assert training.learner.players["main"].incarnation == before.standings["main"].incarnation + 1
        training.run()
        assert 2_400 <= training.learner.decisions < 3_000
    rates = [row["second/learning_rate"] for row in metrics_of(path) if "second/learning_rate" in row]
    assert rates
    assert set(rates) == {0.001}
    assert replayed(path).standings["second"].decisions > 300


LINEAR = replace(tiny().learner, learning_rate=Linear(start=1e-3, end=0.0))
SEARCH = "{search: [{type: LogUniform, path: learner.learning_rate.start, low: 1e-5, high: 1e-2}], every: 400}"


@pytest.mark.parametrize(
    ("own", "then"),
    [
        ({"learner.learning_rate.start": "1e-4"}, change(learner__learning_rate="1e-4")),
        ({"learner.learning_rate": "1e-4"}, change("main", learner__learning_rate__start="1e-4")),
        ({"learner.learning_rate": "1e-4"}, change(league__roles__main__population=SEARCH)),
    ],
)
def test_nothing_is_changed_with_which_a_player_could_not_go_on(
    tmp_path: Path, own: dict[str, str], then: ChangeSettings
) -> None:
    path = tmp_path / "run"
    train(path, tiny(learner=LINEAR), Asker(stop_at=400))
    folder = folder_of(path)
    assert ask(folder, ChangeSettings(settings=own, player="main"))[0].refused is None
    refused = ask(folder, then)[0].refused
    assert refused is not None
    assert "learner.learning_rate" in refused
    assert train(path, None, Asker(stop_at=800)).learner.decisions >= 800


def test_who_keeps_settings_of_its_own_is_told(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "run", tiny())
    second = AddPlayer(player="second", role="main", settings={"algorithm.entropy": "0.5"})
    assert ask(folder, second)[0].refused is None
    assert ask(folder, change(algorithm__entropy="0.1"))[0].done == (
        "from now on: algorithm.entropy=0.1 (of their own they keep algorithm.entropy: second)"
    )
    assert ask(folder, change(algorithm__gamma="0.9"))[0].done == "from now on: algorithm.gamma=0.9"


def test_a_failure_after_the_commit_is_not_called_a_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise RuntimeError("the learner is gone")

    folder = folder_of(tmp_path / "run", tiny())
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        monkeypatch.setattr(training.learner, "configure", die)
        asked = Asked(folder.requests, change(algorithm__entropy="0.1"))
        with pytest.raises(RuntimeError, match="gone"):
            training.run()
    assert asked.answer() == EditAnswer(failed="the learner is gone")
    assert replayed(tmp_path / "run").settings == {"algorithm.entropy": 0.1}


def test_who_has_left_cannot_be_measured_against(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(path, tiny(league=replace(tiny().league, bots=("equilibrium",))), Asker(stop_at=200))
    folder = folder_of(path)
    assert ask(folder, RemovePlayer(player="equilibrium"))[0].refused is None
    refused = ask(folder, change(evaluation__opponents="equilibrium"))[0].refused
    assert refused == "snapshots cannot be measured against 'equilibrium': it has left the league"


def test_a_run_that_never_started_is_edited_too(tmp_path: Path) -> None:
    path = tmp_path / "run"
    folder = folder_of(path, tiny())
    for edit, done in (
        (AddPlayer(player="second", role="main"), "second joined as main"),
        (change(budget="600"), "from now on: budget=600"),
        (
            change(evaluation__opponents="random,equilibrium"),
            "from now on: evaluation.opponents=random,equilibrium; equilibrium joined",
        ),
    ):
        assert ask(folder, edit)[0].done == done
    training = train(path, None, Asker())
    assert 600 <= training.learner.decisions < 1_000
    assert set(training.league.standings) == {"main", "second"}


def test_a_change_of_settings_keeps_the_tables_of_a_stopped_run(tmp_path: Path) -> None:
    path = tmp_path / "run"
    train(path, tiny(), Asker(stop_at=1_200))
    ask(folder_of(path), change(budget="1800", learner__epochs="2"))
    training = train(path, None, Asker())
    assert training.learner.players["main"].incarnation == 0, "it went on exactly where it was"
    assert training.learner.players["main"].config.epochs == 2
    assert training.league.starts == 1


def test_two_who_join_and_leave_keep_the_seeds_of_the_others(tmp_path: Path) -> None:
    """Fresh weights follow from the place in the joining order, so that a removal moves nobody's."""
    path = tmp_path / "run"
    train(path, tiny(), Asker(stop_at=400))
    folder = folder_of(path)
    for edit in (
        AddPlayer(player="second", role="main"),
        AddPlayer(player="third", role="main"),
        RemovePlayer(player="second"),
    ):
        assert ask(folder, edit)[0].refused is None
    with folder.lock(), closing(serial_training(load_experiment(folder), folder)) as training:
        assert training._hosted["main"].number == 0
        assert training._hosted["third"].number == 2
        assert list(training.learner.players) == ["main", "third"]
