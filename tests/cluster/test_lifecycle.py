"""One job from its start to its deletion: suspended, resumed in another size, and removed with its saves.

Its history stays, and shows the job and its processes from the store alone.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from cluster.harness import Cluster, Space
from cluster.harness.store import BUCKET
from cluster.jobs import Run, account, failures, verify_stopped


def cprjob(cluster: Cluster, *arguments: str) -> str:
    """Run `cprjob` on the bucket, without access to the cluster; return its standard output."""
    address = cluster.store.environment()
    program = Path(sys.executable).parent / "cprjob"
    command, *options = arguments
    store = (f"s3://{BUCKET}", "--endpoint", address["AWS_ENDPOINT_URL"])
    environment = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"} | address
    done = subprocess.run(
        [program, command, *store, *options], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_resized_job_loses_nothing_and_deletes_its_saves(cluster: Cluster, space: Space) -> None:
    nothing = {"portionOfLostSamples": 1e-9}
    saves = {"snapshots__deleteWithJob": True, "snapshots__keepHistory": True}
    run = Run.endless(space, "resized", shards__replicas=3, accuracyBudget=nothing, **saves)
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

    uid = run.uid()
    assert cluster.store.keys(f"{uid}/gen-")
    run.delete()
    run.wait_until_deleted()
    left = cluster.store.keys(f"{uid}/")
    assert left
    assert [key for key in left if not key.startswith(f"{uid}/history/")] == []
    report = json.loads(cprjob(cluster, "report", "--job", uid, "--json"))
    assert (report["job"], report["samples"]) == ("resized", status["progress"]["samples"])
    suspended_shard = cprjob(cluster, "logs", "--job", uid, "--role", "shard", "--index", "2", "--incarnation", "1")
    assert suspended_shard.rstrip().endswith("process 1 of this pod ended with exit code 10")
