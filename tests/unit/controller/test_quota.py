"""A job in a queue of Kueue: it starts when it is admitted, stops without loss, and gives its quota back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cpr_operator.api.frozen_settings import replay_in_force, sparse_updates
from cpr_operator.api.sizes import shard_memory
from cpr_operator.api.status import Condition
from cpr_operator.api.validate import parse_spec
from cpr_operator.cluster.protocol import UnavailableError
from cpr_operator.reconcile.kueue import is_deleted, true_condition
from simulation.control_plane.cluster import SimulatedCluster
from simulation.control_plane.kueue import admit, counts, is_finished, no_workload, preempt, waits, workload
from simulation.control_plane.run import Simulation
from simulation.control_plane.scenarios import ALL_MEMBERS, HALF, TIGHT
from simulation.control_plane.workload import Action, Scenario, phase, spec, trained


def quota(driver: Simulation) -> Condition:
    (found,) = [each for each in driver.status().conditions if each.type == "QuotaReserved"]
    return found


def events(driver: Simulation) -> list[str]:
    return [event.reason for event in driver.cluster.events.values()]


async def test_pods_are_not_created_before_the_job_is_admitted() -> None:
    driver = Simulation(Scenario("waits", (), spec(shards__spares=1), queue="team"))
    await driver.passes(3)
    assert counts(driver.cluster) == {"trainer": 2, "shard": 3, "spare": 1}
    assert driver.cluster.pods == {}
    assert (driver.status().phase, quota(driver).status, quota(driver).reason) == ("Pending", "False", "WaitsForQuota")
    assert "Queued" in events(driver)
    admit(driver.cluster)
    await driver.passes(2)
    assert (quota(driver).status, quota(driver).message) == ("True", "team admitted the job")
    pods = [pod.manifest["spec"] for pod in driver.cluster.pods.values()]
    assert len(pods) == 5
    assert all(pod["nodeSelector"] == {"pool": "spot"} for pod in pods)
    assert all({"key": "spot", "operator": "Exists"} in pod["tolerations"] for pod in pods)


async def test_workload_has_the_requests_of_the_pods() -> None:
    template = {
        "spec": {
            "nodeSelector": {"arch": "amd64"},
            "containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}],
        }
    }
    driver = Simulation(Scenario("asks", (), spec(trainers__template=template), queue="team"))
    await driver.passes(1)
    found = workload(driver.cluster)
    assert found is not None
    trainers, shards = (each["template"]["spec"] for each in found["spec"]["podSets"])
    (main,) = trainers["containers"]
    assert main["resources"] == {"requests": {"cpu": "2"}}
    assert "env" not in main
    assert trainers["nodeSelector"] == {"arch": "amd64"}
    assert shards["containers"][0]["resources"]["requests"] == {"cpu": "1", "memory": "2Gi"}


async def test_publisher_has_quota_until_it_has_ended() -> None:
    steps = ((waits(), admit), (HALF, preempt), (waits(), admit))
    document = spec(publish={"to": "file:///models"})
    driver = Simulation(Scenario("publishes", steps, document, replaced=ALL_MEMBERS, queue="team"))
    await driver.passes(3)
    assert counts(driver.cluster) == {"trainer": 2, "shard": 3, "publisher": 1}
    found = workload(driver.cluster)
    assert found is not None
    requested = found["spec"]["podSets"][2]["template"]["spec"]["containers"][0]["resources"]
    while not any("publisher" in name for name in driver.cluster.pods):
        await driver.step()
    (pod,) = [pod for pod in driver.cluster.pods.values() if "publisher" in pod.name]
    manifest = pod.manifest["spec"]
    assert manifest["containers"][0]["resources"] == requested
    assert requested["requests"]["memory"] == "2049Mi", "a shard's, and digests of rows"
    assert manifest["nodeSelector"] == {"pool": "spot"}
    assert {"key": "spot", "operator": "Exists"} in manifest["tolerations"]
    finished = await driver.run()  # every step checks that no pod is there without quota
    assert (finished.status.phase, "Suspended" in finished.phases) == ("Succeeded", True)
    assert not is_finished(finished.cluster), "another publisher may publish the last model"
    while not is_finished(finished.cluster):
        await driver.step()


@pytest.mark.parametrize("updates", ["PerStep", "PerPush"])
async def test_workload_and_pods_have_memory_for_held_pushes(updates: str) -> None:
    tables = [{"name": "t0", "rows": 3 * 10**8}]
    large = spec(model__tables=tables, data__batchSize=10**6, trainers__sparseUpdates=updates)
    driver = Simulation(Scenario("large", (), large, queue="team"))
    await driver.passes(1)
    found = workload(driver.cluster)
    assert found is not None
    (main,) = found["spec"]["podSets"][1]["template"]["spec"]["containers"]
    admit(driver.cluster)
    await driver.passes(2)
    shards = [pod.manifest["spec"]["containers"][0] for pod in driver.cluster.pods.values() if "shard" in pod.name]
    assert [shard["resources"] for shard in shards] == 3 * [main["resources"]]
    status, parsed = driver.status(), parse_spec(large)
    memory = shard_memory(parsed, replay_in_force(parsed, status), sparse_updates(parsed, status.runtime).mode)
    assert (memory.held_bytes > 0) is (updates == "PerStep")
    assert main["resources"]["limits"]["memory"] == f"{-(-memory.needed_bytes >> 20)}Mi"
    assert found["spec"]["queueName"] == "team"


async def test_a_preempted_job_loses_nothing_and_waits_for_its_next_turn() -> None:
    steps = ((waits(), admit), (HALF, preempt), (waits(), admit))
    driver = Simulation(Scenario("preempted", steps, TIGHT, replaced=ALL_MEMBERS, queue="team"))
    finished = await driver.run()
    assert finished.status.phase == "Succeeded"
    assert finished.status.budget is not None
    assert finished.status.budget.spent == 0
    assert "Suspended" in finished.phases
    await driver.step()
    assert is_finished(finished.cluster)
    messages = [event.message for event in finished.cluster.events.values() if event.reason == "Suspending"]
    assert any("Preempted" in message for message in messages)


def spares(number: int) -> Action:
    return lambda cluster: cluster.set_spec("job", shards={"replicas": 3, "spares": number})


async def test_more_spares_wait_for_quota_and_the_job_loses_nothing() -> None:
    admitted = (waits(), admit)
    steps = (admitted, (HALF, spares(2)), admitted, (trained(1500), spares(1)))
    document = spec(shards__spares=1, accuracyBudget__portionOfLostSamples=0.01)
    driver = Simulation(Scenario("spares", steps, document, replaced=ALL_MEMBERS, queue="team"))
    finished = await driver.run()  # every step checks that spares have quota
    assert (finished.status.phase, finished.phases.count("Suspended") > 0) == ("Succeeded", True)
    assert finished.status.budget is not None
    assert finished.status.budget.spent == 0
    assert counts(finished.cluster) == {"trainer": 2, "shard": 3, "spare": 2}, "fewer spares stop no job"
    assert finished.status.counters.group == 2
    (why,) = [event.message for event in finished.cluster.events.values() if event.reason == "Suspending"]
    assert why.startswith("1 spares become 2, and team has to admit them: ")


async def test_spares_are_not_created_while_kueue_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: str) -> None:
        raise UnavailableError("it is away")

    driver = Simulation(Scenario("away", ((waits(), admit), (HALF, lambda _: None)), TIGHT, queue="team"))
    while driver.unfinished:
        await driver.step()
    monkeypatch.setattr(SimulatedCluster, "read", read)
    spares(2)(driver.cluster)
    await driver.passes(4)
    assert (driver.status().phase, driver.cluster.spares()) == ("Running", [])


async def test_released_quota_is_reported_to_kueue() -> None:
    steps = ((waits(), admit), (HALF, preempt), (waits(), lambda _: None))
    driver = Simulation(Scenario("released", steps, TIGHT, replaced=ALL_MEMBERS, queue="team"))
    while driver.unfinished:
        await driver.step()
    found = workload(driver.cluster)
    assert found is not None
    assert "admission" not in found["status"]
    assert true_condition(found, "Requeued")
    assert phase("Suspended")(driver.cluster)


async def test_workload_condition_shows_whether_all_pods_run() -> None:
    driver = Simulation(Scenario("ready", ((waits(), admit), (phase("Starting"), lambda _: None)), queue="team"))
    while driver.unfinished:
        await driver.step()
    assert not true_condition(workload(driver.cluster) or {}, "PodsReady")
    while driver.status().phase != "Running":
        await driver.step()
    assert true_condition(workload(driver.cluster) or {}, "PodsReady")


async def test_deleted_job_holds_its_quota_until_its_pods_are_deleted() -> None:
    steps = ((waits(), admit), (HALF, lambda cluster: cluster.user_deletes("job")))
    driver = Simulation(Scenario("deleted", steps, TIGHT, replaced=ALL_MEMBERS, queue="team"))
    while driver.unfinished:
        await driver.step()
    found = workload(driver.cluster)
    assert found is not None
    assert is_deleted(found)
    assert any(not pod.view().ended for pod in driver.cluster.pods.values())
    finished = await driver.run()  # every step checks that pods have quota
    await driver.step()
    assert no_workload(finished.cluster)


async def test_the_workload_of_an_ended_job_goes_with_the_job() -> None:
    driver = Simulation(Scenario("ended", ((waits(), admit),), queue="team"))
    finished = await driver.run()
    while not is_finished(finished.cluster):
        await driver.step()
    await driver.step()
    finished.cluster.user_deletes("job")
    assert no_workload(finished.cluster)


async def test_a_job_that_could_not_start_anyway_stays_out_of_its_queue() -> None:
    document = spec() | {"restoreFrom": {"job": "another"}}
    driver = Simulation(Scenario("anchor", (), document, queue="team"))
    await driver.passes(3)
    assert no_workload(driver.cluster)
    assert driver.status().phase == "Pending"


async def test_job_trains_on_while_kueue_is_unavailable_and_no_other_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    async def read(*_: str) -> None:
        raise UnavailableError("conversion webhook for kueue.x-k8s.io/v1beta1, Kind=Workload failed")

    driver = Simulation(Scenario("away", ((waits(), admit), (HALF, lambda _: None)), TIGHT, queue="team"))
    while driver.unfinished:
        await driver.step()
    monkeypatch.setattr(SimulatedCluster, "read", read)
    await driver.passes(4)
    assert driver.status().phase == "Running"
    assert "Suspending" not in events(driver)
    waiting = Simulation(Scenario("waits", (), queue="team"))
    await waiting.passes(2)
    assert quota(waiting).reason == "KueueRefused"
    assert "conversion webhook" in quota(waiting).message
    assert waiting.cluster.pods == {}


async def test_job_with_the_queue_label_is_reported_with_the_setting_to_enable() -> None:
    driver = Simulation(Scenario("disabled", (), queue="team"))
    driver.controller._reader = replace(driver.controller._reader, kueue=False)
    await driver.passes(3)
    assert (quota(driver).status, quota(driver).reason) == ("False", "KueueDisabled")
    assert "kueue.enabled=true" in quota(driver).message
    assert driver.cluster.pods == {}
    assert workload(driver.cluster) is None


@pytest.mark.parametrize("refused", [True, False])
async def test_a_missing_flavor_is_named(refused: bool) -> None:  # noqa: FBT001 -- a parameter
    driver = Simulation(Scenario("flavor", (), queue="team"))
    await driver.passes(1)
    admit(driver.cluster)
    if refused:
        del driver.cluster.objects["ResourceFlavor", "", "spot"]
    await driver.passes(2)
    assert (driver.status().phase == "Pending") == refused
    assert quota(driver).reason == ("FlavorMissing" if refused else "Admitted")
