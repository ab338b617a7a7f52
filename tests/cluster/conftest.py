"""Fixtures of the tests on a real cluster: `cluster` for the session, `space` (a namespace) for a class.

CPR_CLUSTER_TESTS=required makes a machine without a cluster an error; otherwise its tests are skipped, with the reason.
"""

import itertools
import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.harness import Cluster, Space, UnavailableError
from cluster.harness.cluster import cluster as bring_up
from cluster.harness.pods import TRAINER_IMAGE
from cluster.jobs import DATA_KEY, SOME_EPOCHS, Run, verify
from support.pages import image
from support.realdata import click_log

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[1] / "examples"
STORE_IMAGE = "localhost/cprjob-versitygw:dev"
CASE_S = 180
#: Namespaces are deleted while other tests go on, so no name is used twice.
NUMBERS = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in this folder; its time limit leaves out fixtures, since the first one brings the cluster up."""
    for item in items:
        if HERE in item.path.parents:
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


@pytest.fixture(scope="session")
def calm_run(cluster: Cluster, clicks: None) -> Iterator[Run]:
    """A run that nobody disturbed, and that has ended."""
    space = cluster.space(f"calm-{os.getpid()}")
    run = Run.start(space, "calm", ttlSecondsAfterFinished=36_000)
    run.finish()
    yield run
    cluster.leave(space)


@pytest.fixture(scope="session")
def calm(calm_run: Run) -> dict[str, Any]:
    """The status of a run that lost nothing: what all others are compared with."""
    status = calm_run.status()
    verify(calm_run, status, replaced=())
    return status


@pytest.fixture(scope="session")
def long_calm(cluster: Cluster, clicks: None) -> Iterator[dict[str, Any]]:
    """The status of a longer run that lost nothing."""
    space = cluster.space(f"long-calm-{os.getpid()}")
    run = Run.start(space, "calm", data__epochs=SOME_EPOCHS)
    status = run.finish()
    verify(run, status, replaced=())
    yield status
    cluster.leave(space)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add to the report of a failed test what its namespace and the operator say, while they are still there."""
    report = yield
    arguments = getattr(item, "funcargs", {})
    if call.when == "call" and report.failed and isinstance(arguments.get("space"), Space):
        report.sections.append(("cluster", arguments["space"].diagnostics()))
        if isinstance(arguments.get("cluster"), Cluster):
            report.sections.append(("operator", arguments["cluster"].operator_log()))
    return report
