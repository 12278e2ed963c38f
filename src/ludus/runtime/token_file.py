"""The secret word of a cluster: who does not know it is let in nowhere. It lies in a file that only its owner
can read, and never on a command line."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

TOKEN_VARIABLE = "LUDUS_TOKEN"
"""The token itself, for where there is no file."""
RAY_TOKEN_VARIABLE, RAY_PATH_VARIABLE, RAY_MODE_VARIABLE = (
    "RAY_AUTH_TOKEN",
    "RAY_AUTH_TOKEN_PATH",
    "RAY_AUTH_MODE",
)


class TokenError(ValueError):
    """There is no token, or its file is no good."""


def make_token_file(path: str | Path) -> Path:
    """A file with a new token; one that is there stays as it is, if nobody else can read it."""
    path = Path(path)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        read_token_file(path)
        return path
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32) + "\n")
    return path


def read_token_file(path: str | Path) -> str:
    path = Path(path)
    try:
        mode = path.stat().st_mode
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise TokenError(f"token file {path}: {error.strerror}") from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise TokenError(
            f"token file {path} can be read by others (mode {stat.S_IMODE(mode):03o}): chmod 600 {path}"
        )
    if not token:
        raise TokenError(f"token file {path} is empty; delete it and let Ludus make another")
    return token


def token_from(environment: Mapping[str, str]) -> str | None:
    """As the environment has it: LUDUS_TOKEN, or one of Ray's variables; None if nobody has said anything."""
    for variable in (TOKEN_VARIABLE, RAY_TOKEN_VARIABLE):
        if environment.get(variable, "").strip():
            return environment[variable].strip()
    path = environment.get(RAY_PATH_VARIABLE)
    return read_token_file(path) if path else None


def with_token(environment: Mapping[str, str], token: str) -> dict[str, str]:
    """The environment for programs of Ray: they ask everybody for this token, and send it."""
    without = {name: value for name, value in environment.items() if name != RAY_PATH_VARIABLE}
    return {**without, RAY_MODE_VARIABLE: "token", RAY_TOKEN_VARIABLE: token}
