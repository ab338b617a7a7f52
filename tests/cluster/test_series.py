"""A series of jobs on the real cluster: each starts from the model of the one before, chosen by labels."""

from typing import Any

from cluster.harness import Space
from cluster.harness.space import condition
from cluster.jobs import Run, manifest, phase

DATA = {"format": "Synthetic", "batchSize": 128, "seed": 1}


def day(space: Space, name: str, series: str, samples: int, **restore: Any) -> Run:
    """Apply one job of a series, which starts from the newest of them."""
    latest = {"matchLabels": {"series": series}, **restore}
    job = manifest(
        name,
        data=DATA | {"samples": samples},
        trainers__replicas=1,
        shards__replicas=2,
        restoreFrom={"latestOf": latest},
    )
    job["metadata"]["labels"] = {"series": series}
    space.apply(job)
    return Run(space, name)


def test_each_day_starts_from_the_day_before_and_waits_for_it(space: Space) -> None:
    first = day(space, "monday", "clicks", 200_000, none="Initialise")
    # Its pods take more than a second, and times of creation are whole seconds.
    space.wait_job("monday", "trains", lambda job: phase(job) in {"Running", "Succeeded"}, within_s=90)
    second = day(space, "tuesday", "clicks", 30_000)
    awaited = space.wait_job(
        "tuesday", "waits for monday", lambda job: condition(job, "PodsReady").get("reason") == "AnchorAwaited"
    )
    assert "monday is older than this job" in condition(awaited, "PodsReady")["message"]
    other = day(space, "other", "views", 10_000, none="Initialise")
    ends = {run.name: run.finish() for run in (other, first, second)}
    assert "ancestor" not in ends["monday"]
    assert "ancestor" not in ends["other"]
    assert ends["tuesday"]["ancestor"] == {"job": "monday", "key": ends["monday"]["result"]["key"]}
    assert any("from the model of monday" in told for told in space.told("tuesday", "Started"))
    third = day(space, "wednesday", "clicks", 10_000)
    assert third.finish()["ancestor"] == {"job": "tuesday", "key": ends["tuesday"]["result"]["key"]}
