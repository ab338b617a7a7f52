"""Names, owner references and labels of a job's objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from cpr_contract import env

Role = Literal["shard", "trainer"]

#: Leading characters of the job's uid in every name, so that a re-applied job never reuses a name of its predecessor.
UID_CHARS = 5


@dataclass(frozen=True, slots=True)
class JobId:
    """The identity of a job. Its objects carry the name for people, and the uid for owner references."""

    namespace: str
    name: str
    uid: str

    @property
    def stem(self) -> str:
        """The prefix of the names of this job's objects."""
        return f"{self.name}-{self.uid[:UID_CHARS]}"


def pod_name(job: JobId, role: Role, index: int, incarnation: int) -> str:
    """The pod's name. It has the incarnation, so a replacement never waits for a pod that is stuck Terminating."""
    return f"{job.stem}-{role}-{index}-{incarnation}"


def spare_name(job: JobId, number: int) -> str:
    """The name of a spare's pod, which it keeps when it becomes a shard."""
    return f"{job.stem}-{env.ROLE_SPARE}-{number}"


def publisher_name(job: JobId, number: int) -> str:
    """The name of the pod of a publisher. Each one has a number of its own."""
    return f"{job.stem}-{env.ROLE_PUBLISHER}-{number}"


def recorder_name(job: JobId, number: int) -> str:
    """The name of the pod of a recorder. Each attempt has a number of its own."""
    return f"{job.stem}-{env.ROLE_RECORDER}-{number}"


def key_secret_name(job: JobId, digest: str) -> str:
    """The name of the Secret with the handshake key of that digest, so that different keys have different names."""
    return f"{job.stem}-key-{digest}" if digest else f"{job.stem}-key"


def job_labels(job: JobId) -> dict[str, str]:
    """Labels of every object of the job."""
    return {
        "app.kubernetes.io/name": "cprjob",
        "app.kubernetes.io/instance": job.name,
        "app.kubernetes.io/managed-by": "cprjob-operator",
        env.LABEL_JOB: job.name,
        env.LABEL_JOB_UID: job.uid,
    }


def pod_labels(job: JobId, role: str, index: int, incarnation: int) -> dict[str, str]:
    """Labels of the pod of a member, or of a pod that deletes the job's saves."""
    return job_labels(job) | {
        "app.kubernetes.io/component": role,
        env.LABEL_ROLE: role,
        env.LABEL_INDEX: str(index),
        env.LABEL_INCARNATION: str(incarnation),
    }


def metadata(job: JobId, name: str) -> dict[str, Any]:
    """Metadata of an object that is deleted with the job."""
    return {
        "name": name,
        "namespace": job.namespace,
        "labels": job_labels(job),
        "ownerReferences": [
            {
                "apiVersion": f"{env.GROUP}/v1alpha1",
                "kind": "CPRJob",
                "name": job.name,
                "uid": job.uid,
                "controller": True,
            }
        ],
    }
