"""Tests of the Ray runtime are collected where Ray is installed: `make test-more` installs it, `make test` does not."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("ray") else ["test_*.py"]
