"""An encrypted job on the cluster: it recovers, and each of its ports refuses pods of other jobs."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.harness import Cluster, Pod, Space
from cluster.jobs import ENDLESS, LOSSLESS, Run, account, manifest, verify_stopped

pytestmark = pytest.mark.timeout(300, func_only=True)

CALLER = (Path(__file__).parent / "tls_caller.py").read_text()
TLS = {"encryption": "TLS"}


def trained(run: Run, beyond: int = 0) -> int:
    """Wait until the operator has read that the job has trained more samples, and return them."""

    def progress(status: dict[str, Any]) -> int:
        return int(status.get("progress", {}).get("samples", 0))

    return progress(run.wait("trains on", lambda status: progress(status) > beyond, within_s=180))


def call(space: Space, caller: Pod, certificate: str, callee: Pod, *ports: int) -> list[str]:
    """Return what ports of a pod answer to another pod."""
    arguments = (certificate, callee.ip, *map(str, ports))
    done = space.kubectl("exec", "-i", caller.name, "--", "python3", "-", *arguments, stdin=CALLER)
    return list(json.loads(done).values())


def test_encrypted_job_recovers_and_refuses_other_pods(cluster: Cluster, space: Space) -> None:
    run, other = Run(space, "encrypted"), Run(space, "other")
    space.apply(manifest(run.name, data=ENDLESS, shards__replicas=2, security=TLS, **LOSSLESS))
    space.apply(manifest(other.name, data=ENDLESS, trainers__replicas=1, shards__replicas=1, security=TLS))
    trained(run)
    trained(other)
    run.before = run.uids()
    victim = run.pod("shard", 1)
    failures = run.recover_from("the deletion", lambda: space.delete_pod(victim.name, force=True))
    assert failures == [("shard", 1, 1, "Vanished")]
    trained(run, beyond=trained(run))

    shard, trainer, stranger = run.pod("shard", 1), run.pod("trainer", 1), other.pod("trainer", 0)
    assert space.report(shard) is None  # the API server asks it without a certificate
    name = f"trainer-0.{run.uid()}"
    served = [
        call(space, run.pod("trainer", 0), name, pod, port, 7071) for pod, port in ((shard, 7070), (trainer, 7072))
    ]
    assert served == [["serves", "HTTP/1.0 200 OK"]] * 2
    for certificate, page in ((name, "refuses"), ("none", "HTTP/1.0 403 Forbidden")):
        refused = [
            call(space, stranger, certificate, pod, port, 7071) for pod, port in ((shard, 7070), (trainer, 7072))
        ]
        assert refused == [["refuses", page]] * 2

    other.delete()
    status = verify_stopped(run, cluster.store, replaced={("shard", 1)})
    assert (status["budget"]["spent"], status["restarts"]) == (0, 1)
    assert account(cluster.store, status) == {0: (), 1: ()}
