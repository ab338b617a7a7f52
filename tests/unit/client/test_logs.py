from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cpr_operator.client import ClientError, client
from cpr_operator.client.client import Member, Span, before, follow_log, newest, read_log

MEMBER = Member("team", "job", "shard", 1)


def pod(incarnation: int, phase: str = "Running") -> dict[str, Any]:
    name = f"pod-{incarnation}"
    labels = {"cprjob.io/incarnation": str(incarnation)}
    return {"metadata": {"name": name, "uid": name, "labels": labels}, "status": {"phase": phase}}


@dataclass
class FakeConnection:
    """A job with pods and a phase that change with each read. The last state stays."""

    looks: list[tuple[str, list[dict[str, Any]]]]
    queries: list[Mapping[str, object]] = field(default_factory=list)
    read: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    breaks: str = ""

    def find(self, namespace: str, name: str) -> dict[str, Any] | None:
        assert (namespace, name) == ("team", "job")
        if len(self.looks) > 1 and self.queries:
            self.looks.pop(0)
        phase = self.looks[0][0]
        return {"spec": {}, "status": {"phase": phase}} if phase else None

    def pods(self, namespace: str, labels: Mapping[str, object]) -> list[dict[str, Any]]:
        assert namespace == "team"
        self.queries.append(labels)
        return self.looks[0][1]

    def log(self, namespace: str, pod: str, **how: object) -> Iterator[str]:
        assert namespace == "team"
        self.read.append((pod, how))
        stamp = "2026-01-01T00:00:01.123456789Z " if how["timestamps"] else ""
        yield f"{stamp}{pod} began\n"
        if pod == self.breaks:
            raise ClientError("broken")
        yield f"{stamp}{pod} ended\n"


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "POLL_S", 0.0)


def test_pods_of_an_earlier_job_of_the_name_are_left_out() -> None:
    earlier, mine, unlabelled = pod(9), pod(3), pod(2)
    earlier["metadata"]["labels"]["cprjob.io/job-uid"] = "earlier"
    mine["metadata"]["labels"]["cprjob.io/job-uid"] = "uid"
    connection: Any = FakeConnection([("Running", [earlier, mine, unlabelled])])
    found = [newest(connection, replace(MEMBER, uid=uid)) for uid in ("uid", "", "another")]
    assert found == [mine, earlier, unlabelled]


def test_read_log_reads_the_newest_pod_that_started() -> None:
    connection = FakeConnection([("Running", [pod(2), pod(10), pod(9), pod(11, "Pending")])])
    assert list(read_log(connection, MEMBER, Span())) == ["pod-10 began\n", "pod-10 ended\n"]  # type: ignore[arg-type]
    assert connection.queries == [{"cprjob.io/job": "job", "cprjob.io/role": "shard", "cprjob.io/index": 1}]
    assert connection.read == [("pod-10", {"follow": False, "since_seconds": None, "timestamps": False})]


def test_read_log_without_a_started_pod_raises_client_error() -> None:
    connection = FakeConnection([("Starting", [pod(1, "Pending")])])
    with pytest.raises(ClientError, match="shard/1 of team/job has no pod with a log"):
        list(read_log(connection, MEMBER, Span()))  # type: ignore[arg-type]


def test_follow_log_continues_with_the_next_pod_until_the_job_ends() -> None:
    looks = [
        ("Starting", [pod(1, "Pending")]),
        ("Running", [pod(1)]),
        ("Recovering", [pod(1, "Failed"), pod(2, "Pending")]),
        ("Running", [pod(2)]),
        ("Succeeded", [pod(2, "Succeeded")]),
    ]
    connection = FakeConnection(looks)
    lines = list(follow_log(connection, MEMBER, Span()))  # type: ignore[arg-type]
    assert lines == ["pod-1 began\n", "pod-1 ended\n", "pod-2 began\n", "pod-2 ended\n"]
    assert all(how["follow"] is True for _, how in connection.read)


def test_follow_log_of_an_ended_job_reads_its_last_pod_and_of_a_deleted_job_ends() -> None:
    ended = FakeConnection([("Failed", [pod(3, "Failed")])])
    assert list(follow_log(ended, MEMBER, Span())) == ["pod-3 began\n", "pod-3 ended\n"]  # type: ignore[arg-type]
    empty = FakeConnection([("", [])])
    assert list(follow_log(empty, MEMBER, Span())) == []  # type: ignore[arg-type]


def test_follow_log_ignores_a_stream_that_breaks_with_its_pod() -> None:
    looks = [("Running", [pod(1)]), ("Succeeded", [pod(2, "Succeeded")])]
    connection = FakeConnection(looks, breaks="pod-1")
    lines = follow_log(connection, MEMBER, Span())  # type: ignore[arg-type]
    assert next(lines) == "pod-1 began\n"
    looks.pop(0)
    assert list(lines) == ["pod-2 began\n", "pod-2 ended\n"]


def test_follow_log_raises_if_a_stream_breaks_while_its_pod_runs() -> None:
    connection = FakeConnection([("Running", [pod(1)])], breaks="pod-1")
    with pytest.raises(ClientError, match="broken"):
        list(follow_log(connection, MEMBER, Span()))  # type: ignore[arg-type]


def test_since_and_until_bound_the_lines() -> None:
    connection = FakeConnection([("Running", [pod(1)])])
    since, until = datetime.now(UTC) - timedelta(seconds=90), datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC)
    assert list(read_log(connection, MEMBER, Span(since, until))) == []  # type: ignore[arg-type]
    (_, how), *_ = connection.read
    assert how["since_seconds"] in {90, 91, 92}
    later = datetime(2026, 1, 1, 0, 0, 2, tzinfo=UTC)
    assert list(read_log(connection, MEMBER, Span(until=later)))[0] == "pod-1 began\n"  # type: ignore[arg-type]  # noqa: RUF015
    assert list(follow_log(connection, MEMBER, Span(until=later)))[1:] == ["pod-1 ended\n"]  # type: ignore[arg-type]


def test_before_ends_at_the_first_later_line() -> None:
    stamps = ["2026-01-01T00:00:00Z", "2026-01-01T00:00:01.999999999Z", "2026-01-01T00:00:02.000000001+00:00"]
    lines = (f"{stamp} line {number}\n" for number, stamp in enumerate(stamps))
    until = datetime(2026, 1, 1, 1, 0, 1, 999999, tzinfo=UTC) - timedelta(hours=1)
    assert list(before(lines, until)) == ["line 0\n", "line 1\n"]
