"""Experiments as typed code: trees of frozen dataclasses, written as JSON, overridden by path, listed."""

from ludus.config.changes import apply_overrides, override
from ludus.config.encoding import decode, encode
from ludus.config.errors import ConfigError
from ludus.config.listing import MISSING, Setting, diff, paths
from ludus.config.recorded import apply_encoded
from ludus.config.yaml_files import load_yaml

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
