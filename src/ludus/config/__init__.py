"""Experiments as typed code: trees of frozen dataclasses, written as JSON, overridden by path, listed."""

from ludus.config.annotations import ConfigError
from ludus.config.changes import apply_encoded, apply_overrides, override
from ludus.config.conversion import load_yaml
from ludus.config.encoding import decode, encode
from ludus.config.listing import MISSING, Setting, diff, paths

__all__ = [
    "MISSING",
    "ConfigError",
    "Setting",
    "apply_encoded",
    "apply_overrides",
    "decode",
    "diff",
    "encode",
    "load_yaml",
    "override",
    "paths",
]
