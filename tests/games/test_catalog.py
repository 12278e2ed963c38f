"""Games by address: built in, of another library, from a file; and the check on all that ship."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ludus
from ludus.games.catalog import ADAPTERS, list_games, resolve
from ludus.games.check import check_game
from ludus.games.lift import Lifted
from ludus.games.seat_rows import GameError

BUILTIN = [entry.address for entry in list_games() if entry.library is None]

FILE = """
from dataclasses import dataclass
from ludus.data.specs import ActionSpec, Choice, GameSpec, ObservationSpec, Vector
from ludus.games.builtin.tic_tac_toe import TicTacToe
from ludus.games.game import Turn


class Guess:
    def __init__(self, numbers: int = 3):
        self.spec = GameSpec.symmetric(
            name=f"guess_{numbers}", num_seats=1, max_length=1, zero_sum=False,
            observation=ObservationSpec(parts={"nothing": Vector(size=1)}),
            action=ActionSpec(heads={"number": Choice(num=numbers)}),
        )

    def reset(self, seed):
        self.right = seed % 3
        return Turn(observations={0: [0]})

    def step(self, actions):
        return Turn(observations={}, reward=[float(actions[0] == self.right)], over=True)


def one_table(numbers: int = 4):
    return Guess(numbers)


def a_class():
    return Guess


def a_source():
    return TicTacToe()


def nonsense():
    return 7


instance = TicTacToe()
table = Guess()
number = 3
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("games") / "guess.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("name", BUILTIN)
def test_every_builtin_game_keeps_its_promises(name: str) -> None:
    report = check_game(resolve(name), episodes=12, max_steps=300, bot_seconds=0.3)
    assert report.ok, str(report)
    assert report.game


def test_the_catalog_lists_the_games_that_ship() -> None:
    assert {"rock_paper_scissors", "kuhn", "leduc", "tic_tac_toe", "connect_four"} <= set(BUILTIN)
    for entry in list_games():
        assert entry.description
        assert "\n" not in entry.description


def test_the_catalog_tells_which_libraries_show_critics_the_whole_state() -> None:
    for adapter in ADAPTERS.values():
        module, _, name = adapter.source.partition(":")
        tree = ast.parse(Path(ludus.__path__[0], *module.split(".")[1:]).with_suffix(".py").read_text())
        (source,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
        fields = [
            node.target.id
            for node in source.body
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
        ]
        assert adapter.critic_state == ("critic_state" in fields), adapter.source


def test_importing_and_listing_import_no_game() -> None:
    code = (
        "import sys; from ludus.games.catalog import list_games; list_games();"
        "print([m for m in sys.modules if m.startswith(('ludus.games.builtin.', 'ludus.games.adapters.'))])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_options_reach_the_game() -> None:
    with_threats, without = resolve("connect_four"), resolve("connect_four", threats=False)
    assert with_threats.spec.kinds[0].observation.parts.keys() > without.spec.kinds[0].observation.parts.keys()


@pytest.mark.parametrize(
    ("name", "game"),
    [
        ("Guess", "guess_3"),
        ("one_table", "guess_4"),
        ("a_class", "guess_3"),
        ("a_source", "tic_tac_toe"),
        ("instance", "tic_tac_toe"),
    ],
)
def test_games_in_a_file(file: Path, name: str, game: str) -> None:
    source = resolve(f"{file}:{name}")
    assert source.spec.name == game
    assert check_game(source, episodes=4, bot_seconds=0.1).ok


def test_options_reach_a_lifted_game(file: Path) -> None:
    source = resolve(f"{file}:Guess", numbers=8)
    assert isinstance(source, Lifted)
    assert source.spec.name == "guess_8"
    assert resolve(f"{file}:one_table", numbers=9).spec.name == "guess_9"


def test_a_game_in_a_module() -> None:
    assert resolve("ludus.games.builtin.kuhn:Kuhn").spec == resolve("kuhn").spec


def test_gymnasium_games_by_id() -> None:
    pytest.importorskip("gymnasium")
    source = resolve("gymnasium:CartPole-v1", max_length=20)
    assert source.spec.name == "CartPole-v1"
    assert source.spec.max_length == 20


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("conect_four", "no game 'conect_four'; did you mean 'connect_four'"),
        ("zzz", "no game 'zzz'; there are .*kuhn"),
        ("gymnasium:", "name a game after the colon, such as 'gymnasium:CartPole-v1'"),
        ("{file}:Gues", "did you mean 'Guess'"),
        ("{file}:number", "is 3; expected a GameSource"),
        ("{file}:table", "is a table of its own, so name its class"),
        ("{file}:nonsense", "returns 7; expected a GameSource or a Game"),
        ("missing/guess.py:Guess", "no Python file 'missing/guess.py'"),
        ("no_such_package.game:Guess", "no module 'no_such_package'"),
        ("no_such_package:Guess", "no module 'no_such_package'"),
        ("openspeil:leduc_poker", "did you mean 'openspiel:leduc_poker'"),
        ("PettingZoo:classic.go_v5", "did you mean 'pettingzoo:classic.go_v5'"),
        ("gymnasum:CartPole-v1", "did you mean 'gymnasium:CartPole-v1'"),
        ("attari:pong", "'attari:pong' is no address of a game; did you mean 'atari:pong'"),
        ("slimevoley:x", "did you mean 'slimevolley'"),
        ("remote:127.0.0.1:23432/kuhn", "did you mean 'remote://127.0.0.1:23432/kuhn'"),
        ("remote:/127.0.0.1:23432/kuhn", "did you mean 'remote://127.0.0.1:23432/kuhn'"),
        ("remot://127.0.0.1/kuhn", "did you mean 'remote://127.0.0.1/kuhn'"),
    ],
)
def test_wrong_addresses_name_the_nearest(file: Path, address: str, message: str) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, ImportError, OSError), match=message):
        resolve(address.format(file=file))


def test_a_module_may_be_called_almost_like_a_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "atari_2.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    assert resolve("atari_2:Guess").spec.name == "guess_3"


def test_wrong_options_name_the_nearest(file: Path) -> None:
    with pytest.raises(ValueError, match="'connect_four' has no option 'threat'; did you mean 'threats'"):
        resolve("connect_four", threat=True)
    with pytest.raises(ValueError, match="has no option 'number'; did you mean 'numbers'"):
        resolve(f"{file}:Guess", number=3)
    with pytest.raises(ValueError, match="has no option 'sise'"):
        resolve(f"{file}:instance", sise=4)


def test_a_game_on_a_server_names_the_library_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "ludus.games.remote.client", raising=False)
    for module, error, said in (
        ("grpc", GameError, "needs 'grpcio'"),
        ("ludus.games.remote.shortcut", ModuleNotFoundError, "ludus.games.remote.shortcut"),
    ):
        with monkeypatch.context() as without:
            without.setitem(sys.modules, module, None)
            with pytest.raises(error, match=said):
                resolve("remote://127.0.0.1:1/kuhn")
