"""The operator's release changes while a job trains: it is upgraded and taken back, or uninstalled and installed."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from cluster.harness import Cluster, Pod, Space, until
from cluster.jobs import MANY_EPOCHS, Run, account, failures, ledger, verify, verify_members
from support.before import unpack

pytestmark = [pytest.mark.realdata, pytest.mark.usefixtures("clicks"), pytest.mark.timeout(400, func_only=True)]


#: A job that ends, and not before the release is another one.
EPOCHS = 3


def delete_shard(run: Run, index: int) -> str:
    """Delete a shard's pod by force; return the pod's uid."""
    victim = run.pod("shard", index)
    run.space.delete_pod(victim.name, force=True)
    return victim.uid


def wait_replaced(run: Run, index: int, uid: str) -> None:
    """Wait until the job trains with a successor of the shard's pod that had this uid."""

    def trains(status: dict[str, Any]) -> bool:
        member = status["shards"][index]
        return member["uid"] not in {"", uid} and member["state"] == "Ready" and status["phase"] == "Running"

    run.wait(f"trains with shard {index} replaced", trains, within_s=90)


def verify_replaced(cluster: Cluster, run: Run, *shards: int) -> None:
    """Stop the job: these shards were replaced, once each and no other member, and what they lost is told exactly."""
    verify_members(run, run.status(), replaced={("shard", index) for index in shards})
    status = run.stop()
    assert [each[:3] for each in failures(status)] == [("shard", index, 1) for index in shards]
    assert ledger(status) == account(cluster.store, status)


def versions(run: Run) -> set[int]:
    """Return the contract versions of all rosters of the job's newest pods."""
    return {json.loads(run.pod(role, index).roster)["contract"] for role, index in run.uids()}


def images(pods: Iterable[Pod]) -> set[str]:
    """Return the images of these pods' only containers."""
    return {container["image"] for pod in pods for container in pod.raw["spec"]["containers"]}


def of_the_release(cluster: Cluster) -> set[str]:
    """Return the names of all objects that carry the release's label, as all but the CRD do."""
    kinds = ",".join(cluster.kubectl("api-resources", "--verbs=list", "--output=name").split())
    said = cluster.kubectl("get", kinds, "-A", "-l", "app.kubernetes.io/instance=cprjob", "-o", "name")
    return set(said.split())


class TestUpgrade:
    def test_an_operator_of_the_next_contract_version_goes_on_with_the_job_and_so_does_the_one_before(
        self, cluster: Cluster, space: Space
    ) -> None:
        run = Run.start(space, "upgraded", data__epochs=MANY_EPOCHS)
        before = versions(run)
        with cluster.newer_operator():
            assert images(cluster.operator_pods()) == {"localhost/cprjob-operator-next:dev"}
            wait_replaced(run, 1, delete_shard(run, 1))
            assert versions(run) == before
        wait_replaced(run, 2, delete_shard(run, 2))
        verify_replaced(cluster, run, 1, 2)


@pytest.fixture(scope="module")
def before(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of release 0.1.0. Its images are on the nodes."""
    files = tmp_path_factory.mktemp("before")
    unpack(files)
    cluster.load_before(files)
    return files


class TestUpgradeFromTheReleaseBefore:
    def test_a_job_that_0_1_0_started_is_recovered_and_ends_under_this_release(
        self, cluster: Cluster, space: Space, before: Path
    ) -> None:
        image = "localhost/cprjob-trainer-before:dev"
        with cluster.operator_before(before):
            run = Run.start(space, "old", image=image, data__epochs=EPOCHS, recovery=None)
            run.slow_down()  # an upgrade takes half a minute where the machine is busy
            assert images(cluster.operator_pods()) == {"localhost/cprjob-operator-before:dev"}
            cluster.release.upgrade("localhost/cprjob-operator")
            cluster.wait_operator()
            assert images(cluster.operator_pods()) == {"localhost/cprjob-operator:dev"}
            told = run.wait("is told by this release", lambda status: "shown" in status)
            assert (told["phase"], told["restarts"], run.uids()) == ("Running", 0, run.before)
            wait_replaced(run, 1, delete_shard(run, 1))
            run.speed_up()
            assert images(space.pods(job="old")) == {image}
            status = run.finish(within_s=300)
        verify(run, status, replaced={("shard", 1)})
        assert failures(status) == [("shard", 1, 1, "Vanished")]
        assert ledger(status) == account(cluster.store, status)

    def test_a_job_of_this_release_that_was_suspended_goes_on_under_0_1_0(
        self, cluster: Cluster, space: Space, before: Path
    ) -> None:
        run = Run.start(space, "back", data__epochs=MANY_EPOCHS)
        samples = run.stop()["progress"]["samples"]
        with cluster.operator_before(before):
            space.patch("back", '{"spec":{"suspend":false}}')
            run.wait("trains again", lambda status: status["phase"] == "Running", within_s=90)
            run.before = run.uids()
            wait_replaced(run, 1, delete_shard(run, 1))
            status = run.stop()
        assert status["progress"]["samples"] > samples
        assert failures(status) == [("shard", 1, 2, "Vanished")]
        assert ledger(status) == account(cluster.store, status)


class TestUninstall:
    def test_a_job_outlives_the_release_and_is_recovered_when_it_is_installed_again(
        self, cluster: Cluster, space: Space
    ) -> None:
        run = Run.start(space, "orphan", data__epochs=MANY_EPOCHS)
        installed = of_the_release(cluster)
        assert {"deployment.apps/cprjob", "serviceaccount/cprjob"} < installed
        with cluster.no_operator():
            assert of_the_release(cluster) == set()
            before = run.trained()
            until("the job trains on", lambda: run.trained() > before, 60)
            assert {pod.uid for pod in space.pods(job="orphan")} == set(run.before.values())
            uid = delete_shard(run, 1)
        wait_replaced(run, 1, uid)
        verify_replaced(cluster, run, 1)
