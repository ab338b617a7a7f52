"""Options, plugins and Hypothesis profiles of all tests."""

import gc
import os

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler.protocol import Scheduling

from support import run_report
from support.side_by_side import SideBySide

# Read when torch is loaded, here and in processes that tests start: threads that wait sleep. On a busy machine, threads
# that spin while they wait for each other take several times the processor time of the work itself.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Examples have no deadline: the machine may be loaded.
settings.register_profile("cprjob", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", parent=settings.get_profile("cprjob"), max_examples=3000)
settings.load_profile("cprjob")  # pytest's --hypothesis-profile goes before it


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of `make test`, `make e2e` and `make soak`."""
    parser.addoption("--run-report", action="store_true", help="a line for each file; core-minutes by folder; no skips")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugins of this project."""
    run_report.configure(config)


def pytest_collection_finish() -> None:
    """Exclude all imported objects from garbage collection, which takes a tenth of the time of a simulated run."""
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    """Distribute tests over workers by file. One worker runs all tests of the cluster."""
    return SideBySide(config, log)
