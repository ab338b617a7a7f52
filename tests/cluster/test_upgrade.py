"""helm's upgrade from release 0.1.0 while a job trains, as the chart's README prints it."""

from pathlib import Path

from cluster.harness import Cluster, Space
from cluster.jobs import Run, failures, pod_template, verify_stopped
from support.previous_release import unpack

IMAGE = "localhost/cprjob-trainer-before:dev"


def test_job_of_the_previous_release_is_recovered_by_this_one(cluster: Cluster, space: Space, tmp_path: Path) -> None:
    unpack(tmp_path)
    with cluster.operator_before(tmp_path):
        assert cluster.operator_images() == {"localhost/cprjob-operator-before:dev"}
        here = pod_template(cluster.nodes.name(1))  # only this node has that image
        templates = {"trainers__template": here, "shards__template": here}
        run = Run.endless(space, "old", image=IMAGE, recovery=None, **templates)
        cluster.release.upgrade("localhost/cprjob-operator")
        cluster.wait_operator()
        assert cluster.operator_images() == {"localhost/cprjob-operator:dev"}
        status = run.wait("is reported by this release", lambda status: "shown" in status)
        assert (status["phase"], status["restarts"], run.uids()) == ("Running", 0, run.before)
        victim = run.pod("shard", 1)
        run.recover_from("the deletion", lambda: space.delete_pod(victim.name, force=True))
        run.train_on()
        images = {each["image"] for pod in space.pods(job="old") for each in pod.raw["spec"]["containers"]}
        assert images == {IMAGE}
        status = verify_stopped(run, cluster.store, replaced={("shard", 1)})
    assert failures(status) == [("shard", 1, 1, "Vanished")]
    cluster.release.test()
