"""Progress and cost of a run: `--run-report`, which `make test`, `make e2e` and `make soak` pass.

A run prints a line for each file of tests when its last test has ended. The summary has the processor time by folder.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

#: The key of a worker's processor time in the output that xdist collects from it.
WORKER_CPU = "cpu_s"
_ERROR_CHARACTERS = 2000


def cpu_s(pid: int) -> float:
    """Return the user and system time, in seconds, of a process, its live descendants, and all that these reaped."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text("ascii", "replace").rpartition(")")[2].split()
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    ticks = sum(int(field) for field in fields[11:15])
    total = ticks / os.sysconf("SC_CLK_TCK")
    for task in tasks:
        try:
            children = (task / "children").read_text("ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        total += sum(cpu_s(int(child)) for child in children)
    return total


def part(nodeid: str) -> str:
    """Return the folder below `tests` that holds a test; parts of the soak run are folders of their own."""
    folders = _file(nodeid).split("/")[1:-1]
    return "/".join(folders[: 2 if folders[:1] == ["soak"] else 1])


class Measure:
    """In the process that runs tests: adds to each report of a teardown the processor time of the whole test."""

    def __init__(self) -> None:
        self._begun_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, bool | None, bool | None]:
        self._begun_s = cpu_s(os.getpid())
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            # xdist carries added attributes of a report to the process that prints.
            vars(report)["cpu_s"] = cpu_s(os.getpid()) - self._begun_s
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[WORKER_CPU] = cpu_s(os.getpid())


class RunReport:
    """In the process that prints: a line for each file, and the processor time of each part.

    A skipped test fails the run: a ring has no optional tests.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._begun_s = time.monotonic()
        self._waiting: Counter[str] = Counter()  # tests of each file that have not ended
        self._outcomes: dict[str, Counter[str]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: defaultdict[str, float] = defaultdict(float)
        self._workers_s = 0.0
        self._total = self._ended = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect([item.nodeid for item in session.items])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._expect(ids)

    def _expect(self, ids: list[str]) -> None:
        if ids:  # the controller of workers collects nothing; each worker collects the same
            self._waiting = Counter(map(_file, ids))
            self._total = len(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._workers_s += getattr(node, "workeroutput", {}).get(WORKER_CPU, 0.0)

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport | pytest.CollectReport) -> tuple[str, str, str] | None:
        """Keep pytest's counts, and print a file's line in place of its letters."""
        if isinstance(report, pytest.CollectReport) or hasattr(report, "wasxfail"):
            return None
        if report.when == "call" or not report.passed:
            category = "error" if report.failed and report.when != "call" else report.outcome
            return category, "", ""
        return "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = _file(report.nodeid)
        self._seconds[file] += report.duration
        if report.failed:
            # All of it comes at the end of the run, which an interrupted one does not reach.
            error = getattr(report.longrepr, "reprcrash", None) or report.longreprtext[-_ERROR_CHARACTERS:]
            self._write(f"FAILED {report.nodeid} ({report.when}): {str(error)[:_ERROR_CHARACTERS]}", red=True)
        if report.when == "call" or not report.passed:
            # pytest reports a failure that a test states beforehand as a skip.
            outcome = "xfailed" if report.skipped and hasattr(report, "wasxfail") else report.outcome
            self._outcomes.setdefault(file, Counter())[outcome] += 1
        if report.when == "teardown":
            self._cpu_s[part(report.nodeid)] += getattr(report, "cpu_s", 0.0)
            self._ended += 1
            self._waiting[file] -= 1
            if not self._waiting[file]:
                outcomes = ", ".join(f"{count} {name}" for name, count in sorted(self._outcomes[file].items()))
                self._write(f"{file}: {outcomes} in {self._seconds[file]:.1f} s")

    def _write(self, text: str, **markup: bool) -> None:
        minutes, seconds = divmod(int(time.monotonic() - self._begun_s), 60)
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        assert reporter
        reporter.write_line(
            f"[{100 * self._ended // max(self._total, 1):3d} % {minutes:3d}:{seconds:02d}] {text}", **markup
        )
        reporter.flush()

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and any(each["skipped"] for each in self._outcomes.values()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("core-minutes by part")
        for name, seconds in sorted(self._cpu_s.items(), key=lambda item: -item[1]):
            terminalreporter.write_line(f"{name:24} {seconds / 60:6.2f}")
        # The tree of this process has live and reaped workers, but no process that a worker left to others to reap.
        total_s = self._workers_s + time.process_time() if self._workers_s else cpu_s(os.getpid())
        remaining_s = total_s - sum(self._cpu_s.values())
        terminalreporter.write_line(f"{'start, import, collection':24} {remaining_s / 60:6.2f}")


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def configure(config: pytest.Config) -> None:
    """Register the plugins of the option, in workers and in the process that prints."""
    if config.getoption("run_report"):
        config.pluginmanager.register(Measure())
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(RunReport(config))
