"""One job from its start to its deletion: suspended, resumed in another size, and removed with its saves."""

from cluster.harness import Cluster, Space
from cluster.jobs import Run, account, failures, verify_stopped


def test_resized_job_loses_nothing_and_deletes_its_saves(cluster: Cluster, space: Space) -> None:
    nothing = {"portionOfLostSamples": 1e-9}
    run = Run.endless(space, "resized", shards__replicas=3, accuracyBudget=nothing, snapshots__deleteWithJob=True)
    suspended = run.stop()
    anchor = suspended["anchors"][-1]
    assert {member["state"] for member in (*suspended["shards"], *suspended["trainers"])} == {"Pending"}
    space.patch("resized", '{"spec":{"shards":{"replicas":2},"trainers":{"replicas":2}}}')
    resumed = run.resume()
    assert [member["incarnation"] for member in resumed["shards"]] == [2, 2]
    assert resumed["forks"][-1]["anchor"] == anchor
    assert {(pod.role, pod.index) for pod in space.pods(job="resized")} == set(run.before)
    run.train_on()
    status = verify_stopped(run, cluster.store, replaced=())
    assert status["anchors"][-1]["samples"] > anchor["samples"]
    assert (failures(status), status["budget"]["spent"], status["budget"]["rollbacks"]) == ([], 0, 0)
    assert account(cluster.store, status) == {0: (), 1: ()}

    prefix = f"{run.uid()}/"
    assert cluster.store.keys(prefix)
    run.delete()
    run.wait_until_deleted()
    assert cluster.store.keys(prefix) == ()
