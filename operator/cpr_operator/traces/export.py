"""Sends spans to a collector by OTLP over HTTP, in a thread of the SDK. The variables are OpenTelemetry's own."""

from __future__ import annotations

import threading

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, TraceFlags

from cpr_operator.api.status import Status
from cpr_operator.reconcile import ReconcileInput
from cpr_operator.traces.spans import Span, ended_spans

_SERVICE = "cprjob-operator"
#: Seconds for queued spans to leave at the end of the process.
_CLOSE_S = 3.0


class Exporter:
    """Queues spans and sends them in batches. A collector that does not answer loses spans, and delays nothing."""

    def __init__(self) -> None:
        """Read the process's environment. Raises ValueError for an invalid variable."""
        self._resource = Resource.create({"service.name": _SERVICE})
        self._scope = InstrumentationScope(__package__ or _SERVICE)
        self._processor = BatchSpanProcessor(OTLPSpanExporter())

    def on_written(self, observed: ReconcileInput, status: Status) -> None:
        """Queue the spans that end with this status. Never blocks; a full queue drops them."""
        report = observed.leader_report
        commit_s = None if report is None else report.commit_s
        for span in ended_spans(observed.job.id, observed.before, status, observed.now, commit_s):
            self._processor.on_end(self._readable(span))

    def close(self) -> None:
        """Send what is queued, for at most three seconds."""
        # The SDK's own limit is 30 seconds, and longer than the grace of the operator's pod.
        closing = threading.Thread(target=self._processor.shutdown, daemon=True)
        closing.start()
        closing.join(_CLOSE_S)

    def _readable(self, span: Span) -> ReadableSpan:
        def context(span_id: int) -> SpanContext:
            return SpanContext(span.trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        return ReadableSpan(
            span.name,
            context(span.span_id),
            None if span.parent_id is None else context(span.parent_id),
            self._resource,
            span.attributes,
            [Event(name, timestamp=_ns(time_s)) for name, time_s in span.events],
            start_time=_ns(span.begin_s),
            end_time=_ns(span.end_s),
            instrumentation_scope=self._scope,
        )


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
