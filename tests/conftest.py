"""What holds for all tests."""

import pytest
from hypothesis import HealthCheck, settings

from support import realdata

# Two loaded cores are late now and then: a time is never a reason to fail.
settings.register_profile("cprjob", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cprjob")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly what a machine without the real click logs did not show."""
    skipped = sum(realdata.MISSING in str(report.longrepr) for report in terminalreporter.getreports("skipped"))
    if skipped:
        line = f"{skipped} TESTS DID NOT RUN: {realdata.MISSING} in {realdata.FOLDER} (set CPR_REAL_DATA)"
        terminalreporter.write_line(line, red=True, bold=True)
