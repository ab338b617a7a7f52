"""A series of jobs on the real cluster: each starts from the model of the one before, chosen by labels."""

from typing import Any

from cluster.harness import Space
from cluster.harness.space import condition
from cluster.jobs import Run, manifest

#: So few samples that a job is over within seconds. No test may rely on seeing one train.
DATA = {"format": "Synthetic", "samples": 30_000, "batchSize": 128, "seed": 1}


def day(space: Space, name: str, series: str, *, none: str = "Wait", suspend: bool = False) -> Run:
    """Apply one job of a series, which starts from the newest of them."""
    latest = {"matchLabels": {"series": series}, "none": none}
    small: dict[str, Any] = {"data": DATA, "trainers__replicas": 1, "shards__replicas": 2}
    job = manifest(name, suspend=suspend, restoreFrom={"latestOf": latest}, **small)
    job["metadata"]["labels"] = {"series": series}
    space.apply(job)
    return Run(space, name)


def result(status: dict[str, Any]) -> str:
    """The key of a job's model."""
    return str(status["result"]["key"])


def started(run: Run) -> str:
    """What the operator told when the job started."""
    return "\n".join(run.space.told(run.name, "Started"))


class TestDays:
    def test_a_day_starts_from_the_day_before_and_not_from_another_series(self, space: Space) -> None:
        first = day(space, "monday", "clicks", none="Initialise")
        monday = first.finish()
        assert "ancestor" not in monday
        assert "from first values" in started(first)
        # This one succeeds last, so without regard to labels it would be taken.
        other = day(space, "views", "views", none="Initialise")
        assert "ancestor" not in other.finish()
        second = day(space, "tuesday", "clicks")
        assert second.finish()["ancestor"] == {"job": "monday", "key": result(monday)}
        assert f"from the model of monday: {result(monday)}" in started(second)

    def test_a_day_waits_for_an_older_one_that_is_not_over(self, space: Space) -> None:
        # A suspended job is not over, so nothing depends on how long it trains.
        held = day(space, "wednesday", "held", none="Initialise", suspend=True)
        held.wait("is suspended", lambda status: status.get("phase") == "Suspended")
        # Times of creation are whole seconds. This job takes several, so the next one is younger than the first.
        day(space, "between", "between", none="Initialise").finish()
        after = day(space, "thursday", "held")
        awaited = space.wait_job(
            "thursday", "waits", lambda job: condition(job, "PodsReady").get("reason") == "AnchorAwaited"
        )
        assert "wednesday is older than this job" in condition(awaited, "PodsReady")["message"]
        assert not space.pods(job="thursday")
        space.patch("wednesday", '{"spec":{"suspend":false}}')
        wednesday, thursday = held.finish(), after.finish()
        assert "ancestor" not in wednesday
        assert thursday["ancestor"] == {"job": "wednesday", "key": result(wednesday)}
