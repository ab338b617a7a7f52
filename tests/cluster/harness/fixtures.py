"""Fixtures of the tests on a real cluster: `cluster` for the session, `space` (a namespace) for a class or a function.

CPR_CLUSTER_TESTS=required makes a machine without a cluster an error; otherwise its tests are skipped, with the reason.
"""

import itertools
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from cluster.harness.cluster import Cluster, UnavailableError
from cluster.harness.cluster import cluster as bring_up
from cluster.harness.pods import TRAINER_IMAGE
from cluster.harness.space import Space
from cluster.jobs import DATA_KEY
from support.pages import image
from support.realdata import click_log

#: A conftest takes all of these.
__all__ = ["clicks", "cluster", "printed_images", "pytest_collection_modifyitems", "pytest_runtest_makereport", "space"]

EXAMPLES = Path(__file__).parents[3] / "examples"
STORE_IMAGE = "localhost/cprjob-versitygw:dev"
CASE_S = 600
#: Namespaces are deleted while other tests run, so no name is used twice.
NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that use the cluster; their time limit leaves out fixtures, since the first one brings it up."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(CASE_S, func_only=True))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    required = os.environ.get("CPR_CLUSTER_TESTS") == "required"
    try:
        with bring_up() as up:
            yield up
    except UnavailableError as why:
        if required:
            pytest.fail(f"CPR_CLUSTER_TESTS=required, but: {why}")
        pytest.skip(f"no cluster: {why}")


@pytest.fixture(scope="class")
def space(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[Space]:
    owner = request.cls.__name__ if request.cls else request.path.stem
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", owner).lower().replace("_", "-")
    space = cluster.space(f"{words[:40]}-{os.getpid()}-{next(NUMBERS)}")
    yield space
    cluster.nodes.heal()
    cluster.leave(space)


@pytest.fixture(scope="module")
def printed_images(cluster: Cluster) -> Iterator[None]:
    """On all nodes, the images of the examples by the names that these print: nodes pull nothing."""
    with (
        cluster.nodes.also_named(TRAINER_IMAGE, image(EXAMPLES / "quickstart.yaml")),
        cluster.nodes.also_named(STORE_IMAGE, image(EXAMPLES / "store.yaml")),
    ):
        yield


@pytest.fixture(scope="session")
def clicks(cluster: Cluster) -> Iterator[None]:
    """The real rows, where the jobs read them."""
    cluster.store.put(DATA_KEY, click_log("criteo_80k.tsv.gz").read_bytes())
    yield
    cluster.store.delete(DATA_KEY)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the state of its namespace and the operator's log to the report of a failed test, while they exist."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    if call.when == "call" and report.failed and isinstance(arguments.get("space"), Space):
        report.sections.append(("cluster", arguments["space"].diagnostics()))
        if isinstance(arguments.get("cluster"), Cluster):
            report.sections.append(("operator", arguments["cluster"].operator_log()))
    return report
