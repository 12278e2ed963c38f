"""`ludus watch` as a person starts it, for the tests that look at its page."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command_line import LUDUS


@contextmanager
def watched(run: Path, *options: str) -> Iterator[str]:
    """The address of its page."""
    command = [*LUDUS, "watch", str(run), "--no-open", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"http://\S+", said)
            assert found is not None, said
            yield found[0]
        finally:
            process.terminate()
            assert process.wait(20) == 0


def league_json(run: Path) -> Any:
    told = subprocess.run([*LUDUS, "league", str(run), "--json"], check=True, capture_output=True, text=True)
    return json.loads(told.stdout)
