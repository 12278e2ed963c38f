"""What tests want to be told at the end, such as how many processes they have killed."""

from __future__ import annotations

import pytest


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            if name == "told":
                terminalreporter.write_line(f"{report.nodeid.split('::')[-1]}: {value}")
