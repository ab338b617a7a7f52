"""Spans of recoveries and saves of a job on a simulated cluster, and what a collector gets of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from cpr_operator.__main__ import open_exporter
from cpr_operator.api.status import Status
from cpr_operator.configuration import Configuration, ConfigurationError
from cpr_operator.controller.controller import Controller
from cpr_operator.reconcile import ReconcileInput
from cpr_operator.traces.export import Exporter
from cpr_operator.traces.spans import RECOVERY, REPLACEMENT, SAVE, Span, ended_spans
from simulation.control_plane.workload import spec
from support.controller_harness import ControllerHarness


@dataclass
class Traced:
    """A job, its spans, and the inputs that they came from."""

    spans: list[Span] = field(default_factory=list)
    written: list[tuple[ReconcileInput, Status]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.harness = ControllerHarness(spec(), on_written=self.on_written)

    def on_written(self, observed: ReconcileInput, status: Status) -> None:
        report = observed.leader_report
        commit_s = None if report is None else report.commit_s
        self.written.append((observed, status))
        self.spans += ended_spans(observed.job.id, observed.before, status, observed.now, commit_s)

    def named(self, name: str) -> list[Span]:
        return [span for span in self.spans if span.name == name]

    async def recovered(self) -> None:
        """Run passes until the job has recovered."""
        while self.harness.status.recovery is None:
            await self.harness.go()
        while self.harness.status.recovery is not None:
            await self.harness.go()


async def test_recovery_has_a_span_with_one_below_it_for_each_replaced_member() -> None:
    traced = Traced()
    await traced.harness.go(8)
    assert traced.named(RECOVERY) == []
    traced.harness.cluster.kill("shard", 1)
    traced.harness.cluster.kill("trainer", 1)
    await traced.recovered()
    (recovery,) = traced.named(RECOVERY)
    replaced = traced.named(REPLACEMENT)
    assert {(s.attributes["cprjob.role"], s.attributes["cprjob.incarnation"]) for s in replaced} == {
        ("shard", 2),
        ("trainer", 2),
    }
    assert {(span.trace_id, span.parent_id) for span in replaced} == {(recovery.trace_id, recovery.span_id)}
    assert len({span.span_id for span in (*replaced, recovery)}) == 3
    failures = traced.harness.status.failures
    assert recovery.begin_s == min(each.time for each in failures)
    assert recovery.end_s == traced.harness.cluster.now
    assert recovery.attributes["cprjob.recovery.lost_members"] == 2
    assert recovery.attributes["cprjob.recovery.kind"] == "ReplaceTrainers"
    assert {name for name, _ in recovery.events} == {
        "decided",
        *(f"lost {f.role}/{f.index}: {f.kind}" for f in failures),
    }
    for span in (*replaced, recovery):
        assert all(span.begin_s <= time_s <= span.end_s for _, time_s in span.events)
        assert recovery.begin_s <= span.begin_s < span.end_s <= recovery.end_s


async def test_recovery_that_another_operator_ends_is_one_trace() -> None:
    traced = Traced()
    cluster = traced.harness.cluster
    await traced.harness.go(8)
    cluster.kill("shard", 0)
    cluster.kill("shard", 1)
    while not traced.named(REPLACEMENT):
        await traced.harness.go()
        traced.harness.controller = Controller(cluster, lambda: cluster.now, on_written=traced.on_written)
    while traced.harness.status.recovery is not None:
        await traced.harness.go()
        traced.harness.controller = Controller(cluster, lambda: cluster.now, on_written=traced.on_written)
    (recovery,) = traced.named(RECOVERY)
    assert {(span.trace_id, span.parent_id) for span in traced.named(REPLACEMENT)} == {
        (recovery.trace_id, recovery.span_id)
    }


async def test_new_anchor_has_the_span_of_its_save() -> None:
    traced = Traced()
    while not traced.named(SAVE):
        await traced.harness.go()
    (save,) = traced.named(SAVE)
    newest = traced.harness.status.anchors[-1]
    assert (save.attributes["cprjob.anchor"], save.attributes["cprjob.step"]) == (newest.key, newest.step)
    observed, _ = traced.written[-1]
    assert observed.leader_report is not None
    assert save.end_s - save.begin_s == pytest.approx(observed.leader_report.commit_s)
    await traced.harness.go(2)
    assert len({span.span_id for span in traced.named(SAVE)}) == len(traced.named(SAVE)), "each anchor has one"


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """Yield the address of a collector, and what it has received."""
    received: list[ExportTraceServiceRequest] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def test_collector_gets_spans_by_otlp(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced()
    await traced.harness.go(8)
    traced.harness.cluster.kill("shard", 1)
    await traced.recovered()
    for name in ("OTEL_EXPORTER_OTLP_COMPRESSION", "OTEL_EXPORTER_OTLP_TRACES_COMPRESSION"):
        monkeypatch.delenv(name, raising=False)
    with collector() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        exporter = Exporter()
        for observed, status in traced.written:
            exporter.on_written(observed, status)
        exporter.close()
    resources = [each for request in received for each in request.resource_spans]
    names = {a.key: a.value.string_value for each in resources for a in each.resource.attributes}
    assert names["service.name"] == "cprjob-operator"
    found = {
        int.from_bytes(span.span_id): span for each in resources for scope in each.scope_spans for span in scope.spans
    }
    assert found.keys() == {span.span_id for span in traced.spans}
    for span in traced.spans:
        got = found[span.span_id]
        assert (got.name, int.from_bytes(got.trace_id)) == (span.name, span.trace_id)
        assert int.from_bytes(got.parent_span_id) == (span.parent_id or 0)
        assert (got.start_time_unix_nano, got.end_time_unix_nano) == (
            pytest.approx(span.begin_s * 1e9),
            pytest.approx(span.end_s * 1e9),
        )
        assert {each.key for each in got.attributes} == set(span.attributes)
        assert [each.name for each in got.events] == [name for name, _ in span.events]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_traces_are_off_unless_a_collector_is_named(environ: dict[str, str], *, expected: bool) -> None:
    assert Configuration.read(environ).traces is expected


def test_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cpr_operator.traces.export", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'cprjob\[traces\]'"):
        open_exporter()
