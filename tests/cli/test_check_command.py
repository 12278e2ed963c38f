import pytest
from command_line import Ludus


def test_a_game_is_checked_with_its_options(ludus: Ludus) -> None:
    rates = []
    for number in (2, 4):
        arguments = ("beacon", "--set", f"decisions={number}", "--episodes", "2", "--tables", "1")
        code, out, err = ludus("check", *arguments)
        assert code == 0, err
        counts = {line.split()[1]: int(line.split("(")[-1].rstrip("x)")) for line in out.splitlines()[1:]}
        rates.append(counts["max_length"] / counts["score"])
    assert rates == [2, 4]  # steps in an episode


@pytest.mark.parametrize(
    ("setting", "named"), [("mode=2v2", "1v1"), ("mod=3v3", "did you mean 'mode'?"), ("3v3", "PATH=VALUE")]
)
def test_a_wrong_option_is_named(ludus: Ludus, setting: str, named: str) -> None:
    code, _, err = ludus("check", "skirmish", "--set", setting)
    assert code == 2
    assert named in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("game", "setting", "hint"),
    [
        ("remote://127.0.0.1:1/kuhn", "seats=3", "options.+seats, or write remote://127.0.0.1:1/kuhn?seats=3"),
        ("remote://127.0.0.1:1/kuhn?a=1", "seats=3", "or write remote://127.0.0.1:1/kuhn?a=1&seats=3"),
        ("openspiel:kuhn_poker", "players=3", "options.+players, or write 'openspiel:kuhn_poker(players=3)'"),
        ("openspiel:goofspiel(num_cards=4)", "players=3", "or write 'openspiel:goofspiel(num_cards=4,players=3)'"),
        ("gymnasium:CartPole-v1", "sutton=true", "; to pass an option on: options.+sutton\n"),
    ],
)
def test_an_option_that_is_to_be_passed_on_says_how(ludus: Ludus, game: str, setting: str, hint: str) -> None:
    library = {"openspiel": "pyspiel", "gymnasium": "gymnasium", "remote": "grpc"}
    pytest.importorskip(library[game.partition(":")[0]])
    code, _, err = ludus("check", game, "--set", setting)
    assert code == 2
    assert f"unknown path '{setting.partition('=')[0]}': the top level has " in err
    assert hint in err
