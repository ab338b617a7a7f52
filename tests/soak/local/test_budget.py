"""The accuracy budget in a real run: it runs out in the middle."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from cpr_contract import env
from cpr_contract.codec import from_json
from cpr_contract.reports import TrainerReport, TrainerState
from support.runs import PATIENCE_S, incarnations, lost_in_model, small_job, started, status, until

pytestmark = [pytest.mark.dist, pytest.mark.timeout(600)]

#: Sample-shards that may be lost where the budget runs out: more than two losses of about a second come to.
LIMIT = 36_000


def write(tmp_path: Path, job: dict[str, Any]) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(job), "utf-8")
    return path


@dataclass(frozen=True)
class Running:
    """A run in the background, as its own status and its leader's reports show it."""

    folder: Path

    def age(self, shard: int) -> int | None:
        """Samples trained since the shard's last save, if somebody trains and a save is there to go back to."""
        found = status(self.folder)
        leader = next((t for t in found.get("trainers", ()) if t.get("host")), None)
        if leader is None or found.get("recovery"):
            return None
        url = f"http://{leader['host']}:{leader['portBase'] + env.HTTP_PORT}/status"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                report = from_json(TrainerReport, answer.read())
        except (urllib.error.URLError, OSError):
            return None
        saved = report.shard_saves[shard] if report.shard_saves else 0
        return report.samples - saved if report.state is TrainerState.TRAINING and saved > 0 else None

    def kill(self, shard: int) -> None:
        """SIGKILL to the shard's process."""
        pod = status(self.folder)["shards"][shard]["pod"]
        log = self.folder / "work" / "pods" / pod / "log.txt"
        for process in Path("/proc").iterdir():
            if process.name.isdigit() and _writes_to(process, log):
                os.kill(int(process.name), signal.SIGKILL)

    def recoveries(self) -> int:
        """Recoveries that are over."""
        found = status(self.folder)
        return 0 if found.get("recovery") else len(found.get("failures", ()))


def _writes_to(process: Path, log: Path) -> bool:
    try:
        return (process / "fd" / "1").readlink() == log
    except OSError:
        return False


@dataclass(frozen=True)
class Bucket:
    """The run's bucket, as a link that an outage lets point to what is no folder."""

    link: Path

    @classmethod
    def make(cls, tmp_path: Path) -> Bucket:
        """To be called before the run."""
        (tmp_path / "bucket").mkdir()
        (tmp_path / "nothing").touch()
        (tmp_path / "work" / "store").mkdir(parents=True)
        bucket = cls(tmp_path / "work" / "store" / "saves")
        bucket.point("bucket")
        return bucket

    def point(self, name: str) -> None:
        fresh = self.link.with_name("fresh")
        fresh.symlink_to(self.link.parents[3] / name)
        fresh.rename(self.link)

    @contextlib.contextmanager
    def outage(self) -> Iterator[None]:
        self.point("nothing")
        yield
        self.point("bucket")


def test_budget_that_runs_out_restores_shards_first_and_then_rolls_back(tmp_path: Path) -> None:
    samples = 160_000
    job = small_job(
        accuracyBudget={"portionOfLostSamples": LIMIT / (2 * samples)},
        recovery={"mode": "Partial"},
        data={"format": "Synthetic", "samples": samples, "batchSize": 64},
    )
    bucket, running = Bucket.make(tmp_path), Running(tmp_path)
    with started(tmp_path, write(tmp_path, job)) as process:
        for number, shard in enumerate((0, 1), start=1):
            until(lambda shard=shard: 0 < (running.age(shard) or 0) < LIMIT // 4)
            running.kill(shard)
            until(lambda number=number: running.recoveries() == number)
        for number, shard in enumerate((0, 1), start=3):
            until(lambda shard=shard: running.age(shard) and status(tmp_path).get("anchors"))
            with bucket.outage():  # until more was trained since the last save than may be lost in all
                until(lambda shard=shard: (running.age(shard) or 0) > LIMIT)
                running.kill(shard)
            until(lambda number=number: running.recoveries() == number)
        assert process.wait(PATIENCE_S) == 0, (tmp_path / "output.txt").read_text()

    report, end = json.loads((tmp_path / "report.json").read_text()), status(tmp_path)
    assert [failure["action"] for failure in report["failures"]] == ["ReplaceShards"] * 2 + ["RollBack"] * 2
    assert incarnations(report) == {"shard/0": 3, "shard/1": 3, "trainer/0": 1}
    assert report["samples"] == samples
    assert report["budget"]["spent"] <= report["budget"]["limit"]
    assert report["budget"]["running_sum"] > 0
    (_, first, second) = end["forks"]
    assert end["result"]["generation"] == 3
    assert {anchor["generation"] for anchor in end["anchors"]} == {3}, "saves went on after the rollback"
    # Both rollbacks were trained again: no sample after the target of the last one is lost.
    assert lost_in_model(tmp_path / "bucket", end["result"]["key"]) == [[], []]
    assert all(stop <= second["anchor"]["samples"] for ranges in end["ledger"]["ranges"] for _, stop in ranges)
    assert first["anchor"]["samples"] <= second["anchor"]["samples"]
