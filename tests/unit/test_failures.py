from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from cpr_contract.codec import to_json
from cpr_contract.reports import ExitCode, Problem, SaveRef
from cpr_operator import failures
from cpr_operator.cluster.views import ContainerView, PodView
from cpr_operator.failures import FREE, PERMANENT, Failure, Kind, Trouble, classify

SHARD = PodView("job-shard-1-1", "uid", "job", "shard", 1, 1, "Running", 0.0, container=ContainerView("Running"))
TRAINER = replace(SHARD, role="trainer")
SAVE = SaveRef(key="gen-0001/shard-0001/inc-0001/step-000000005/manifest.json", step=5, samples=320)
PROBLEM = Problem(reason="TooManyBadLines", message="line 3 has 2 columns", remedy="correct data.uri")


def exited(code: int | None, reason: str = "Error", message: str = "") -> ContainerView:
    return ContainerView("Terminated", reason, message, code)


def waiting(reason: str) -> ContainerView:
    return ContainerView("Waiting", reason, f"the kubelet on {reason}")


def failure(pod: PodView | None) -> Failure:
    found = classify(pod)
    assert isinstance(found, Failure)
    return found


#: One row a line of the table: what the pod shows, and kind, reason, ended.
ROWS: list[tuple[dict[str, Any], Kind, str, bool]] = [
    *(
        ({"disruption": reason, "deleting_until": 9.0}, Kind.DISRUPTION, reason, False)
        for reason in (
            "PreemptionByScheduler",
            "DeletionByTaintManager",
            "EvictionByEvictionAPI",
            "DeletionByPodGC",
            "TerminationByKubelet",
        )
    ),
    *(
        ({"phase": "Failed", "reason": reason, "container": None}, kind, reason, True)
        for reason, kind in (
            ("Evicted", Kind.EVICTED),
            ("NodeLost", Kind.NODE_LOST),
            ("NodeShutdown", Kind.NODE_SHUTDOWN),
            ("Shutdown", Kind.NODE_SHUTDOWN),
            ("Terminated", Kind.NODE_SHUTDOWN),
            ("OutOfcpu", Kind.REJECTED),
            ("OutOfmemory", Kind.REJECTED),
            ("OutOfpods", Kind.REJECTED),
            ("NodeAffinity", Kind.REJECTED),
            ("UnexpectedAdmissionError", Kind.REJECTED),
            ("Preempting", Kind.PREEMPTED),
            ("DeadlineExceeded", Kind.DEADLINE_EXCEEDED),
        )
    ),
    ({"container": exited(137, "OOMKilled")}, Kind.OOM_KILLED, "OOMKilled", True),
    ({"container": exited(0, "OOMKilled")}, Kind.OOM_KILLED, "OOMKilled", True),
    ({"container": exited(0, "Completed")}, Kind.CRASHED, "Completed", True),
    ({"container": exited(1)}, Kind.CRASHED, "Error", True),
    ({"container": exited(None)}, Kind.CRASHED, "Error", True),
    ({"container": exited(255)}, Kind.CRASHED, "Error", True),
    ({"container": exited(137)}, Kind.KILLED, "Error", True),
    ({"container": exited(139)}, Kind.KILLED, "Error", True),
    ({"container": exited(143)}, Kind.KILLED, "Error", True),
    ({"container": exited(137), "deleting_until": 9.0}, Kind.DELETED, "Error", True),
    ({"container": exited(143), "deleting_until": 9.0}, Kind.DELETED, "Error", True),
    ({"container": exited(139), "deleting_until": 9.0}, Kind.KILLED, "Error", True),
    ({"container": exited(ExitCode.FLUSHED)}, Kind.FLUSHED, "Error", True),
    ({"container": exited(ExitCode.SUPERSEDED)}, Kind.SUPERSEDED, "Error", True),
    ({"container": exited(ExitCode.STORE_UNREACHABLE)}, Kind.STORE_UNREACHABLE, "Error", True),
    ({"container": exited(ExitCode.BAD_SPEC)}, Kind.BAD_SPEC, "Error", True),
    ({"container": exited(ExitCode.BAD_DATA)}, Kind.BAD_DATA, "Error", True),
    ({"container": exited(ExitCode.DAMAGED)}, Kind.DAMAGED, "Error", True),
    ({"container": exited(ExitCode.CONTRACT)}, Kind.CONTRACT, "Error", True),
    ({"container": exited(ExitCode.STORE_UNSUITABLE)}, Kind.STORE_UNSUITABLE, "Error", True),
    ({"phase": "Failed", "container": None}, Kind.CRASHED, "Failed", True),
    ({"phase": "Failed"}, Kind.CRASHED, "Failed", False),
    ({"phase": "Unknown", "deleting_until": 9.0}, Kind.NODE_LOST, "NodeLost", False),
    ({"deleting_until": 9.0}, Kind.DELETED, "Deleted", False),
    ({"deleting_until": 9.0, "deletion_grace_s": 30}, Kind.DELETED, "Deleted", False),
    ({"deleting_until": 9.0, "deletion_grace_s": 0}, Kind.VANISHED, "Vanished", True),
    ({"container": exited(143), "deleting_until": 9.0, "deletion_grace_s": 0}, Kind.DELETED, "Error", True),
    ({"phase": "Pending", "container": None, "deleting_until": 9.0}, Kind.DELETED, "Deleted", False),
]


@pytest.mark.parametrize(("shown", "kind", "reason", "ended"), ROWS)
def test_every_line_of_the_table(shown: dict[str, Any], kind: Kind, reason: str, *, ended: bool) -> None:
    found = failure(replace(SHARD, **shown))
    assert (found.kind, found.reason, found.ended) == (kind, reason, ended)
    assert found.message


def test_a_problem_that_a_kubelet_cut_is_shown_as_far_as_it_goes() -> None:
    text = to_json(Problem("BadLine", "line 3 of day_1.tsv has 39 columns", "correct it" * 500))[:4096]
    found = failure(replace(TRAINER, container=exited(ExitCode.BAD_DATA, message=text)))
    assert (found.kind, found.problem) == (Kind.BAD_DATA, None)
    assert "exit code 21" in found.message
    assert "line 3 of day_1.tsv has 39 columns" in found.message
    assert len(found.message) < 500


@pytest.mark.parametrize("reason", list(failures._REMEDIES))
def test_waiting_container_is_trouble_with_a_remedy(reason: str) -> None:
    found = classify(replace(SHARD, phase="Pending", container=waiting(reason)))
    assert isinstance(found, Trouble)
    assert (found.reason, found.message) == (reason, f"the kubelet on {reason}")
    assert found.remedy


def test_unschedulable_pod_is_trouble_with_the_schedulers_message() -> None:
    found = classify(replace(SHARD, phase="Pending", container=None, unschedulable="0/3 nodes: Insufficient cpu"))
    assert isinstance(found, Trouble)
    assert (found.reason, found.message) == ("Unschedulable", "0/3 nodes: Insufficient cpu")


@pytest.mark.parametrize(
    "pod",
    [
        SHARD,
        TRAINER,
        replace(SHARD, phase="Pending", container=None),
        replace(SHARD, phase="Pending", container=ContainerView("Waiting", "ContainerCreating")),
        replace(SHARD, phase="Unknown"),
        replace(SHARD, disruption="PreemptionByScheduler"),
        replace(TRAINER, phase="Succeeded", container=exited(ExitCode.OK, "Completed")),
        replace(TRAINER, phase="Succeeded", container=exited(ExitCode.OK, "Completed"), deleting_until=9.0),
        replace(TRAINER, phase="Succeeded", container=exited(ExitCode.OK, "Completed"), disruption="DeletionByPodGC"),
    ],
)
def test_a_pod_that_starts_runs_or_finished_is_no_failure(pod: PodView) -> None:
    assert classify(pod) is None


def test_deleted_pod_is_classified_as_vanished() -> None:
    found = failure(None)
    assert (found.kind, found.ended, found.counts_as_restart) == (Kind.VANISHED, True, False)


#: Signs of lines 1, 2, 3 and 6, each with the kind it means alone.
SIGNS: list[tuple[dict[str, Any], Kind]] = [
    ({"disruption": "EvictionByEvictionAPI"}, Kind.DISRUPTION),
    ({"reason": "Evicted"}, Kind.EVICTED),
    ({"container": exited(ExitCode.BAD_DATA)}, Kind.BAD_DATA),
    ({"deleting_until": 9.0}, Kind.DELETED),
]


@pytest.mark.parametrize("chosen", [c for n in (2, 3, 4) for c in itertools.combinations(range(4), n)])
def test_first_line_of_the_table_wins(chosen: tuple[int, ...]) -> None:
    shown = {name: value for index in chosen for name, value in SIGNS[index][0].items()}
    first = chosen[0]
    if chosen == (0, 1):  # a condition on a pod that stays is not a failure
        first = 1
    assert failure(replace(SHARD, **shown)).kind is SIGNS[first][1]


@pytest.mark.parametrize("role", ["shard", "trainer"])
@pytest.mark.parametrize(
    ("shown", "kind"),
    [
        ({}, Kind.FLUSHED),
        ({"deleting_until": 9.0}, Kind.FLUSHED),
        ({"deleting_until": 9.0, "disruption": "EvictionByEvictionAPI"}, Kind.DISRUPTION),
        ({"phase": "Failed", "reason": "NodeShutdown"}, Kind.NODE_SHUTDOWN),
    ],
)
def test_flushed_save_is_known_for_every_kind(role: str, shown: dict[str, Any], kind: Kind) -> None:
    pod = replace(SHARD, role=role, container=exited(ExitCode.FLUSHED, message=to_json(SAVE)), **shown)
    found = failure(pod)
    assert (found.kind, found.save, found.ended, found.counts_as_restart) == (kind, SAVE, True, False)
    assert found.problem is None


@pytest.mark.parametrize("message", ["", "{}", "Killed", '{"key": 3}', to_json(PROBLEM)])
def test_flush_without_a_reference_has_no_save(message: str) -> None:
    found = failure(replace(SHARD, container=exited(ExitCode.FLUSHED, message=message)))
    assert (found.kind, found.save) == (Kind.FLUSHED, None)


def test_termination_message_goes_before_kubernetes_message() -> None:
    found = failure(replace(TRAINER, container=exited(ExitCode.BAD_DATA, message=to_json(PROBLEM))))
    assert found.problem == PROBLEM
    assert (found.reason, found.message) == ("TooManyBadLines", "line 3 has 2 columns (correct data.uri)")
    assert (found.permanent, found.exit_code) == (True, ExitCode.BAD_DATA)


@pytest.mark.parametrize(("code", "name"), [(137, "SIGKILL"), (139, "SIGSEGV"), (135, "SIGBUS"), (134, "SIGABRT")])
def test_signals_are_named(code: int, name: str) -> None:
    found = failure(replace(SHARD, container=exited(code)))
    assert found.message == f"the process was killed by {name}"
    assert found.exit_code == code


def test_kinds_that_count_as_restarts_and_permanent_kinds() -> None:
    counted = {Kind.EVICTED, Kind.REJECTED, Kind.DEADLINE_EXCEEDED, Kind.OOM_KILLED, Kind.KILLED, Kind.CRASHED}
    assert set(Kind) - FREE - PERMANENT == counted | {Kind.HUNG, Kind.SUPERSEDED}
    assert failure(replace(SHARD, container=exited(1))).counts_as_restart
    assert not failure(replace(SHARD, container=exited(1))).permanent
    assert not failure(replace(SHARD, deleting_until=1.0)).counts_as_restart


def test_hang_is_reported_by_peers() -> None:
    found = failures.hung(("trainer/0", "shard/2"))
    assert (found.kind, found.ended, found.counts_as_restart) == (Kind.HUNG, False, True)
    assert "trainer/0, shard/2" in found.message
