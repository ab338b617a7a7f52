"""The report's JSON keys are an API; the summary must show the same values."""

from __future__ import annotations

import io
import json
import os
import pty
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.roster import Counters
from cpr_operator.api.status import (
    Anchor,
    BestModel,
    Budget,
    DynamicTable,
    FailureRecord,
    Goodput,
    GroupScores,
    HeldOut,
    LostTime,
    Overhead,
    PinnedData,
    Plan,
    Progress,
    Runtime,
    Segment,
    Shard,
    Status,
    Trainer,
    WorkerCount,
)
from cpr_operator.cli.console import SafeConsole
from cpr_operator.cli.progress_display import (
    ClosableProgress,
    PlainProgress,
    ProgressState,
    Throughput,
    frame,
    line,
    states,
)
from cpr_operator.cli.report import next_local_step, print_summary, report, trained

ANCHOR = Anchor(key="uid/anchor", digest="d", generation=1, step=10, samples=1000)
FAILURE = FailureRecord(
    time=5.0, role="shard", index=1, incarnation=1, kind="Killed", message="by SIGKILL", lost_samples=20,
    lost_row_updates=1470, lost_row_updates_exact=False, action="ReplaceShards", recovery_seconds=2.5,
)  # fmt: skip
SHOP = GroupScores(name="shop", samples=30, auc=0.8)
USERS = DynamicTable(
    name="user", capacity=8192, entries=7000, occupancy_percent=85, waiting=12, admitted=9100, evicted=2100, expired=3,
    dropped=5, full=2105, updated=6.0,
)  # fmt: skip
STATUS = Status(
    phase="Succeeded",
    plan=Plan(mode="Partial", interval_seconds=2, reason="It is cheap."),
    budget=Budget(limit=0.1, spent=0.01, remaining=0.09, running_sum=0.04, rollbacks=0),
    progress=Progress(
        samples=1000,
        total_samples=1000,
        auc=0.75,
        logloss=0.5,
        metrics={"buy.auc": 0.8125},
        held_out=HeldOut(
            step=9, samples=900, scored=50, auc=0.7, logloss=0.6, normalised_entropy=0.9, gauc=0.8, groups=(SHOP,)
        ),
        segment=Segment(pin=7, first_sample=600, stop=900, scored=290, auc=0.625, logloss=0.7, calibration=1.5),
    ),
    tables=(USERS,),
    shards=(
        Shard(index=0, incarnation=1, uid="u0", pod="p0", lost_row_updates=30),
        Shard(index=1, incarnation=2, uid="u1", pod="p1", lost_row_updates=1470, lost_row_updates_exact=False),
    ),
    trainers=(Trainer(index=0, incarnation=1, uid="u2", pod="p2"),),
    leader=0,
    failures=(FAILURE,),
    overhead=Overhead(save_seconds=1, load_seconds=2, lost_seconds=3, reschedule_seconds=4),
    goodput=Goodput(
        ratio=0.9, wall_seconds=100, productive_seconds=90, lost=LostTime(starting=2.5, recovering=7.5), updated=6.0
    ),
    result=ANCHOR,
    best=BestModel(anchor=ANCHOR, value=0.75, since=2),
    runtime=Runtime(
        image="i",
        contract_version=1,
        template_hash="h",
        job_spec="{}",
        workers=WorkerCount(count=2, reason="measured for the first batch"),
    ),
)


def leader(samples: int) -> TrainerReport:
    return TrainerReport(
        contract=1, job_uid="", index=0, incarnation=1, counters=Counters(1, 1, 1), state=TrainerState.TRAINING,
        step=1, samples=samples, samples_started=samples, total_samples=1000, waiting_for=(), silent=(), lost=(),
        problem=None, samples_per_s=123.0, auc=0.7,
    )  # fmt: skip


def test_unknown_total_is_not_printed() -> None:
    assert trained(Status(progress=Progress(samples=1000, total_samples=2000))) == "1,000 of 2,000 samples"
    assert trained(Status()) == "0 samples"
    data = PinnedData(pins=2, pinned_samples=2000, void_samples=0, lag_samples=1000)
    open_job = Status(progress=Progress(samples=1000, total_samples=2000), data=data)
    assert trained(open_job) == "1,000 samples, 1,000 pinned ones to go"


def test_report_has_exactly_the_documented_fields() -> None:
    found = report("job", STATUS, 500.0)
    assert json.loads(json.dumps(found)) == found
    assert found == {
        "job": "job", "phase": "Succeeded", "samples": 1000, "samples_per_s": 500.0, "auc": 0.75, "logloss": 0.5,
        "metrics": {"buy.auc": 0.8125},
        "held_out": {
            "step": 9, "samples": 900, "scored": 50, "auc": 0.7, "logloss": 0.6, "normalised_entropy": 0.9,
            "calibration": None, "gauc": 0.8, "groups": [SHOP.model_dump()], "rest": None,
        },
        "data": None,
        "segment": {
            "pin": 7, "first_sample": 600, "stop": 900, "scored": 290, "auc": 0.625, "logloss": 0.7,
            "normalised_entropy": None, "calibration": 1.5,
        },
        "tables": [USERS.model_dump()],
        "best": {"anchor": ANCHOR.model_dump(), "value": 0.75, "since": 2},
        "plan": {"mode": "Partial", "interval_s": 2.0, "reason": "It is cheap."},
        "budget": {"limit": 0.1, "spent": 0.01, "running_sum": 0.04, "rollbacks": 0},
        "failures": found["failures"],
        "pods": found["pods"],
        "goodput": {
            "ratio": 0.9, "wall_s": 100, "productive_s": 90,
            "lost_s": {
                "queued": 0, "starting": 2.5, "saving": 0, "recovering": 7.5, "repeated": 0, "suspended": 0,
                "waiting_for_data": 0, "finishing": 0,
            },
        },
        "overhead": {"save_s": 1, "load_s": 2, "lost_s": 3, "reschedule_s": 4},
        "workers": {"count": 2, "reason": "measured for the first batch"},
        "replayed_samples": 0, "protected_samples": None,
        "lost_row_updates": 1500, "lost_row_updates_exact": False,
        "result": "uid/anchor",
    }  # fmt: skip
    assert found["pods"][1] == {"name": "p1", "role": "shard", "index": 1, "incarnation": 2, "uid": "u1"}
    assert [pod["role"] for pod in found["pods"]] == ["shard", "shard", "trainer"]
    (failure,) = found["failures"]
    expected = {
        "role": "shard", "index": 1, "kind": "Killed", "lost_samples": 20, "recovery_s": 2.5, "action": "ReplaceShards",
        "lost_row_updates": 1470, "lost_row_updates_exact": False, "incarnation": 1, "message": "by SIGKILL",
    }  # fmt: skip
    assert expected.items() <= failure.items()


def test_report_of_a_job_that_never_started() -> None:
    found = report("job", Status(), None)
    assert (found["phase"], found["plan"], found["budget"], found["pods"]) == ("Pending", None, None, [])
    assert found["workers"] is None


def summary(status: Status) -> str:
    console = Console(file=io.StringIO(), width=120)
    print_summary(console, "job", status, 500.0, next_local_step(status, Path("/work/dir")))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_summary_has_failures_costs_and_the_model() -> None:
    text = summary(STATUS)
    for words in ("job: Succeeded", "500 samples/s", "AUC 0.7500", "1.000% of all samples lost, 10.000% allowed"):
        assert words in text
    assert "AUC 0.6250, log loss 0.7000, normalised entropy -, calibration 1.500 up to pin 7, on 290 samples" in text
    assert "at most 1,500 row updates lost" in text
    assert "90.0% of 100.0 s; recovering 7.5 s, starting 2.5 s" in text
    assert "2 in each trainer: measured for the first batch" in text
    assert "at most 1,470" in text
    assert [line.split() for line in text.splitlines() if line.startswith("user ")] == [
        ["user", "8,192", "7,000", "(85", "%)", "12", "9,100", "2,100", "3", "5"]
    ]
    for words in ("shard/1", "Killed: by SIGKILL", "20", "2.5 s", "uid/anchor", "cprjob export --workdir /work/dir"):
        assert words in text


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"shards": (Shard(index=0, lost_row_updates=30),)}, " 30 row updates lost"),
        ({"shards": (Shard(index=2, lost_row_updates=None),)}, " - row updates lost"),
        ({"phase": "Suspended", "result": None}, "cprjob run --resume --workdir /work/dir"),
    ],
)
def test_summary_of_other_jobs(changes: dict[str, Any], words: str) -> None:
    assert words in summary(STATUS.model_copy(update=changes))


def test_progress_prefers_the_report_of_the_leader() -> None:
    state = ProgressState("job", 3.0, STATUS, leader(400))
    shards = tuple(Shard(index=index, state="Ready" if index else "Restoring") for index in range(40))
    assert states(Status(shards=shards)) == ["1 shards Restoring", "39 shards Ready"]
    text = line(state)
    for words in (
        "400 of 1,000 samples (40 %)",
        "123 samples/s",
        "AUC 0.7000",
        "spent 1.000% of 0.1",
        "shard/1 Pending",
    ):
        assert words in text


def test_frame_of_new_and_running_jobs() -> None:
    console = Console(file=io.StringIO(), width=120)
    for state in (ProgressState("job", 0.0, Status(), None), ProgressState("job", 9.0, STATUS, leader(400))):
        console.print(frame(state))
    assert isinstance(console.file, io.StringIO)
    assert "trainer/0 (leads)" in console.file.getvalue()


def test_plain_progress_prints_at_changes_and_intervals() -> None:
    console = Console(file=io.StringIO(), width=300)
    progress = PlainProgress(console)
    for elapsed_s, phase in ((0.0, "Pending"), (0.2, "Pending"), (0.4, "Running"), (3.0, "Running"), (5.5, "Running")):
        progress.show(ProgressState("job", elapsed_s, STATUS.model_copy(update={"phase": phase}), None))
    assert isinstance(console.file, io.StringIO)
    assert [text.split()[:3] for text in console.file.getvalue().splitlines()] == [
        ["0", "s", "Pending"],
        ["0", "s", "Running"],
        ["6", "s", "Running"],
    ]


def test_throughput_is_over_training_time() -> None:
    throughput = Throughput()
    assert throughput.samples_per_s is None
    throughput.add(10.0, 100)
    assert throughput.samples_per_s is None
    for now, samples in ((12.0, 300), (20.0, 300), (14.0, 200)):
        throughput.add(now, samples)
    assert throughput.samples_per_s == 100.0


def test_terminal_that_is_closed_between_two_lines_is_noticed_at_the_next_state() -> None:
    """Rich takes a closed terminal for a file, and would draw nothing into it until the end."""
    mine, its = pty.openpty()
    closed: list[str] = []
    with os.fdopen(its, "w") as terminal:
        console = SafeConsole(file=terminal)
        progress = ClosableProgress(console, lambda: closed.append("closed"))
        progress.show(ProgressState("job", 0.0, STATUS, None))
        assert not closed
        os.close(mine)
        progress.show(ProgressState("job", 0.2, STATUS, None))
        assert closed == ["closed"]
        progress.close()
