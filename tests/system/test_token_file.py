from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ludus.system.network import TokenError, make_token_file, read_token_file, token_from, with_token


def test_a_token_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    file = make_token_file(tmp_path / "token")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    token = read_token_file(file)
    assert len(token) == 64
    assert read_token_file(make_token_file(file)) == token
    assert read_token_file(make_token_file(tmp_path / "other")) != token


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644])
def test_a_token_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = make_token_file(tmp_path / "token")
    file.chmod(mode)
    for use in (make_token_file, read_token_file):
        with pytest.raises(TokenError, match=f"mode {mode:o}.*chmod 600 {file}"):
            use(file)


def test_what_is_no_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="nowhere: No such file"):
        read_token_file(tmp_path / "nowhere")
    (tmp_path / "empty").touch(0o600)
    with pytest.raises(TokenError, match="empty is empty"):
        read_token_file(tmp_path / "empty")


@pytest.mark.parametrize(
    "token", ["a", "word", "fifteen-letters", "two words of text", "bad\x07bell-and-more", "naïve-but-long-enough"]
)
def test_a_token_is_one_word_that_cannot_be_guessed(tmp_path: Path, token: str) -> None:
    file = tmp_path / "token"
    file.touch(0o600)
    file.write_text(token, encoding="utf-8")
    for read in (lambda: read_token_file(file), lambda: token_from({"LUDUS_TOKEN": token})):
        with pytest.raises(TokenError, match=r"fewer than 16, and could be guessed|one line of printable ASCII"):
            read()


def test_secrets_of_a_container_are_its_own_whatever_their_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = make_token_file(tmp_path / "token")
    file.chmod(0o444)
    monkeypatch.setattr("ludus.system.network._SECRETS", tmp_path)
    assert len(read_token_file(file)) == 64


def test_the_environment_names_a_token_in_three_ways(tmp_path: Path) -> None:
    file = make_token_file(tmp_path / "token")
    assert token_from({}) is None
    assert token_from({"RAY_AUTH_TOKEN_PATH": str(file)}) == read_token_file(file)
    assert token_from({"RAY_AUTH_TOKEN_PATH": str(file), "RAY_AUTH_TOKEN": 16 * "b"}) == 16 * "b"
    assert token_from({"RAY_AUTH_TOKEN": 16 * "b", "LUDUS_TOKEN": f" {16 * 'a'}\n"}) == 16 * "a"


def test_programs_of_ray_get_this_token_and_no_other() -> None:
    before = {"HOME": "/home/me", "RAY_AUTH_TOKEN_PATH": "/old", "RAY_AUTH_TOKEN": "old"}
    assert with_token(before, "new") == {"HOME": "/home/me", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "new"}
