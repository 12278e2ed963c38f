"""Keeps what is secret out of what is shown or sent elsewhere."""

from __future__ import annotations

import os
import re

SECRET = ("KEY", "TOKEN", "PASSWORD", "SECRET")
"""What is in the environment under a name like these is never shown."""
_LOGIN = re.compile(r"://[^/\s\"\\]+@")
"""Up to the last @ of what names the host: a password may hold one."""


def without_secrets(text: str) -> str:
    """Without keys that the environment holds, and without logins."""
    for name, value in os.environ.items():
        if len(value) >= 8 and any(mark in name.upper() for mark in SECRET):
            text = text.replace(value, "***")
    return without_logins(text)


def without_logins(text: str) -> str:
    """Without names and passwords in addresses: redis://NAME:PASSWORD@HOST."""
    return _LOGIN.sub("://***@", text)
