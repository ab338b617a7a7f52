"""Status server, waits and termination of a process."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter

from cpr_contract.codec import from_json
from cpr_contract.file_uris import page_url
from cpr_contract.pinned_data import SegmentScores
from cpr_contract.reports import RECORDED_HEADER, Deleted, ExitCode, HeldOutScores, Problem, Result, SaveRef
from cpr_contract.roster import AnchorRef
from cpr_contract.trace import TracedStep
from cpr_trainer.checkpoint.format.documents import DamagedError, LayoutError
from cpr_trainer.errors import DataError, DivergedError, TrainerError
from cpr_trainer.runtime import StatusServer, end_with, exit_code, problem_of, stop_on_sigterm
from cpr_trainer.runtime import timing as module
from cpr_trainer.runtime.timing import Trace
from cpr_trainer.store import BucketMissingError, StoreBusyError, StoreUnreachableError
from support.runs import until

STATUS = SaveRef("key", 3, 300)
get = partial(httpx.get, timeout=60.0)


class Process:
    """The sources of a status server."""

    def __init__(self) -> None:
        self.good = True
        self.recorded: list[str] = []
        self.registry = CollectorRegistry()
        self.steps = Counter("cprjob_test_steps", "Steps.", registry=self.registry)

    def status(self) -> SaveRef:
        if not self.good:
            raise RuntimeError("no status now")
        return STATUS


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def url(process: Process, request: pytest.FixtureRequest) -> Iterator[str]:
    """The server's pages, at the address of the parameter if the test has one."""
    host = getattr(request, "param", "127.0.0.1")
    with StatusServer(
        host,
        0,
        status=process.status,
        healthy=lambda: process.good,
        ready=lambda: not process.good,
        registry=process.registry,
        on_recorded=process.recorded.append,
    ) as server:
        yield page_url(host, server.port, "")


@pytest.mark.parametrize("url", ["127.0.0.1", "::1"], indirect=True)
def test_the_report_is_a_document_of_the_contract(url: str) -> None:
    answer = get(f"{url}/status?pretty")
    assert answer.headers["content-type"] == "application/json"
    assert from_json(SaveRef, answer.content) == STATUS


def test_record_of_the_operator_arrives_with_its_request_for_the_report(url: str, process: Process) -> None:
    for page in ("status", "status?pretty", "metrics"):
        assert get(f"{url}/{page}", headers={RECORDED_HEADER: page}).status_code == 200
    get(f"{url}/status")
    assert process.recorded == ["status", "status?pretty"]


def test_probes_answer_by_status_code(url: str, process: Process) -> None:
    assert (get(f"{url}/healthz").status_code, get(f"{url}/readyz").status_code) == (200, 503)
    process.good = False
    assert (get(f"{url}/healthz").status_code, get(f"{url}/readyz").status_code) == (503, 200)


def test_metrics_are_those_of_the_registry(url: str, process: Process) -> None:
    process.steps.inc(3)
    assert "cprjob_test_steps_total 3.0" in get(f"{url}/metrics").text


def test_other_pages_and_failing_ones_do_not_end_the_server(
    url: str, process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    assert get(f"{url}/").status_code == 404
    process.good = False
    with pytest.raises(httpx.HTTPError):
        get(f"{url}/status")
    until(lambda: "no status now" in caplog.text)  # the connection ends before the error is logged
    process.good = True
    assert get(f"{url}/status").status_code == 200


def test_clients_take_a_bounded_number_of_threads_and_block_no_other(url: str) -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    before = threading.active_count()
    with ExitStack() as clients:
        for _ in range(60):
            clients.enter_context(socket.create_connection((host, int(port)))).sendall(b"G")
        assert get(f"{url}/status").status_code == 200
        assert threading.active_count() - before <= 32


def test_a_server_is_closed_though_it_was_never_started(process: Process) -> None:
    server = StatusServer("127.0.0.1", 0, status=process.status, healthy=bool, ready=bool, registry=process.registry)
    server.close()
    with socket.create_server(("127.0.0.1", server.port)):
        pass


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (DataError("odd row.", "fix it"), ExitCode.BAD_DATA),
        (LayoutError("other tables.", "match them"), ExitCode.BAD_SPEC),
        (DamagedError("key", "is missing"), ExitCode.DAMAGED),
        (BucketMissingError("no bucket.", "make it"), ExitCode.INTERNAL),
        (StoreUnreachableError("no answer.", "wait"), ExitCode.STORE_UNREACHABLE),
        (StoreBusyError("a pause, please.", "wait", 1.0), ExitCode.STORE_UNREACHABLE),
        (DivergedError("nan.", "lower the rate"), ExitCode.BAD_SPEC),
        (TrainerError("odd.", "wait"), ExitCode.INTERNAL),
    ],
)
def test_every_error_has_its_exit_code(error: TrainerError, code: ExitCode) -> None:
    assert exit_code(error) == code


def test_termination_message_is_a_document(tmp_path: Path) -> None:
    word = tmp_path / "word"
    assert end_with(word, STATUS, ExitCode.FLUSHED) is ExitCode.FLUSHED
    assert from_json(SaveRef, word.read_bytes()) == STATUS
    end_with(word, problem_of(DamagedError("job/part-1", "is missing")), ExitCode.DAMAGED)
    assert from_json(Problem, word.read_bytes()).reason == "DamagedSave"


@given(st.text(max_size=6000))
def test_termination_message_is_never_too_long(tmp_path_factory: pytest.TempPathFactory, message: str) -> None:
    word = tmp_path_factory.mktemp("word") / "word"
    end_with(word, Problem("Reason", message, "remedy"), ExitCode.INTERNAL)
    assert word.stat().st_size <= 4096
    read = from_json(Problem, word.read_bytes())
    assert (read.reason, read.remedy) == ("Reason", "remedy")
    assert read.message == message or message.startswith(read.message.removesuffix("..."))


@pytest.mark.parametrize("letter", ["a", "\u00e4", "\U0001f600", '"'])
def test_long_message_is_cut_to_its_limit(tmp_path: Path, letter: str) -> None:
    end_with(tmp_path / "word", Problem("Reason", letter * 9000, "remedy"), ExitCode.INTERNAL)
    assert 4096 - 24 <= (tmp_path / "word").stat().st_size <= 4096


def test_problem_of_an_error_with_long_texts_fits_into_a_report() -> None:
    problem = problem_of(DataError("m" * 100_000, "r" * 100_000))
    assert (len(problem.message), len(problem.remedy)) == (2048, 2048)


def test_problem_with_a_long_remedy_fits(tmp_path: Path) -> None:
    end_with(tmp_path / "word", Problem("Reason", "message" * 900, "remedy" * 900), ExitCode.INTERNAL)
    read = from_json(Problem, (tmp_path / "word").read_bytes())
    assert (read.message, read.remedy[:12]) == ("...", "remedyremedy")


ANCHOR = AnchorRef(f"{'u' * 36}/gen-0001/dense/group-0001/step-000000010/manifest.json", "d" * 64, 1, 10, 640)
LOST = tuple((1000 * place, 1000 * place + 1 + place) for place in range(500))
SEGMENT = SegmentScores(7, 320, 640, 319, 0.7, 0.5, 0.9, 1.0)
SCORES = HeldOutScores(10, 640, 100, 0.7, 0.5, 0.9, 1.0, 0.6)
CYRILLIC = tuple((f"{letter * 26}.{score}", 0.123456789012) for letter in "абвгдежз" for score in ("auc", "logloss"))


@pytest.mark.parametrize(
    ("metrics", "evaluation", "lost", "complete"),
    [
        (CYRILLIC, SCORES, (), (True, True)),  # in escapes it would not fit
        (tuple((f"{'ж' * 60}{place}", 0.5) for place in range(32)), SCORES, LOST[:3], (False, True)),
        (CYRILLIC, SCORES, LOST[:180], (False, True)),
        (tuple((f"metric {place}", 0.5) for place in range(1000)), SCORES, LOST, (False, False)),
        ((), None, LOST, (False, False)),
    ],
)
def test_result_that_is_too_long_keeps_its_anchor_and_all_that_is_lost(
    metrics: tuple[tuple[str, float], ...],
    evaluation: HeldOutScores | None,
    lost: tuple[tuple[int, int], ...],
    complete: tuple[bool, bool],
    tmp_path: Path,
) -> None:
    result = Result(ANCHOR, lost, 0.5, 0.7, 0.5, metrics, evaluation, segment=SEGMENT)
    end_with(tmp_path / "word", result, ExitCode.OK)
    text = (tmp_path / "word").read_bytes()
    read = from_json(Result, text)
    assert len(text) <= 4096
    assert read.anchor == ANCHOR
    assert (read.metrics != (), read.evaluation is not None) == complete
    assert (read.segment == SEGMENT) is complete[1]
    assert all(any(start <= first and end <= last for start, last in read.lost) for first, end in lost)
    assert read.lost == lost if complete == (True, True) else len(read.lost) <= len(lost)


def test_cleanup_names_as_many_unreadable_keys_as_fit(tmp_path: Path) -> None:
    end_with(tmp_path / "word", Deleted(3, 30, ("k" * 1000,) * 9), ExitCode.OK)
    assert from_json(Deleted, (tmp_path / "word").read_bytes()) == Deleted(3, 30, ("k" * 1000,) * 4)


def test_termination_message_that_cannot_be_written_is_skipped(tmp_path: Path) -> None:
    assert end_with(tmp_path / "no" / "folder", STATUS, ExitCode.OK) is ExitCode.OK


def test_sigterm_is_a_request() -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        stop = stop_on_sigterm()
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_each_step_has_the_parts_of_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([10.0, 11.0, 13.0, 16.0, 20.0, 25.0, 31.0])
    monkeypatch.setattr(module, "monotonic", lambda: next(ticks))
    trace = Trace(tmp_path / "steps")
    for stage in ("wait", "compute", "wait"):
        trace.lap(stage)
    trace.end(7)
    trace.lap("compute")
    trace.end(8)
    trace.close()
    first, second = map(TracedStep.of_line, (tmp_path / "steps").read_text().splitlines())
    assert first == TracedStep(7, 20.0, {"wait": 4.0, "compute": 2.0, "rest": 4.0})
    assert second == TracedStep(8, 31.0, {"compute": 5.0, "rest": 6.0})
