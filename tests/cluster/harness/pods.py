"""A pod as tests look at it."""

from dataclasses import dataclass

from cluster.harness.kubectl import Object

TRAINER_IMAGE = "localhost/cprjob-trainer:dev"


@dataclass(frozen=True, slots=True)
class Pod:
    """The parts of a pod that tests read; `raw` is all of it."""

    name: str
    uid: str
    namespace: str
    node: str
    ip: str
    phase: str
    ready: bool
    deleting: bool
    role: str
    index: int
    incarnation: int
    roster: str  # the annotation's text, empty without one
    container_id: str  # of the container `main`, or the only one; empty before it starts
    exit_code: int | None
    raw: Object

    @classmethod
    def of(cls, raw: Object) -> "Pod":
        """Read the API server's JSON."""
        meta, status = raw["metadata"], raw.get("status", {})
        labels = meta.get("labels", {})
        container = _main(status.get("containerStatuses", []))
        ended = container.get("state", {}).get("terminated") or {}
        return cls(
            name=meta["name"],
            uid=meta["uid"],
            namespace=meta["namespace"],
            node=raw["spec"].get("nodeName", ""),
            ip=status.get("podIP", ""),
            phase=status.get("phase", ""),
            ready=any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions", [])),
            deleting="deletionTimestamp" in meta,
            role=labels.get("cprjob.io/role", ""),
            index=int(labels.get("cprjob.io/index", -1)),
            incarnation=int(labels.get("cprjob.io/incarnation", -1)),
            roster=meta.get("annotations", {}).get("cprjob.io/roster", ""),
            container_id=container.get("containerID", "").removeprefix("containerd://"),
            exit_code=ended.get("exitCode"),
            raw=raw,
        )


def _main(statuses: list[Object]) -> Object:
    for status in statuses:
        if status["name"] == "main":
            return status
    return statuses[0] if statuses else {}
