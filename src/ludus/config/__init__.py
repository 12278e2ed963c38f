"""Experiments as typed code: trees of frozen dataclasses, written as JSON, overridden by path, listed."""

from ludus.config.annotations import ConfigError, as_config_error
from ludus.config.changes import apply_encoded, apply_overrides, apply_read, override
from ludus.config.conversion import load_yaml
from ludus.config.encoding import code_named_by, decode, encode, read
from ludus.config.listing import MISSING, Setting, diff, paths

__all__ = [
    "MISSING",
    "ConfigError",
    "Setting",
    "apply_encoded",
    "apply_overrides",
    "apply_read",
    "as_config_error",
    "code_named_by",
    "decode",
    "diff",
    "encode",
    "load_yaml",
    "override",
    "paths",
    "read",
]
