"""Commands in a pod: the frames of `kubectl exec`, and models that come as an archive over them."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from websocket import ABNF, WebSocketConnectionClosedException, WebSocketTimeoutException

from cpr_contract.codec import to_json
from cpr_contract.reports import Problem
from cpr_contract.requests import ExportRequest
from cpr_operator.cli.command_errors import TrialError
from cpr_operator.cli.export import export_from
from cpr_operator.cli.trainer_process import TrainerPod
from cpr_operator.client import ClientError, CommandError
from cpr_operator.client.kube_connection import KubeConnection, UnavailableError
from cpr_operator.client.tool import Tool

STDOUT, STDERR, STATUS = b"\1", b"\2", b"\3"
SUCCESS = STATUS + b'{"status": "Success"}'
CUT, LATE = WebSocketConnectionClosedException("gone"), WebSocketTimeoutException("late")


def failure(code: int) -> bytes:
    causes = [{"reason": "ExitCode", "message": str(code)}]
    return STATUS + json.dumps({"status": "Failure", "details": {"causes": causes}}).encode()


class Exec:
    """A websocket that the API server has opened: its frames, and the standard input of the command."""

    def __init__(self, frames: Iterable[bytes | Exception]) -> None:
        self._frames, self.stdin, self.pings, self.shut = iter(frames), list[bytes](), 0, False
        self.sock = SimpleNamespace(
            settimeout=lambda _s: None, recv_data_frame=self._receive, ping=self._ping, shutdown=self._shutdown
        )

    def _receive(self, *, control_frame: bool) -> tuple[int, Any]:
        assert control_frame
        frame = next(self._frames, None)
        if isinstance(frame, Exception):
            raise frame
        return (ABNF.OPCODE_CLOSE if frame is None else ABNF.OPCODE_BINARY), SimpleNamespace(data=frame)

    def _ping(self) -> None:
        self.pings += 1

    def _shutdown(self) -> None:
        self.shut = True

    def write_stdin(self, data: bytes) -> None:
        self.stdin.append(data)

    def close_channel(self, _channel: int) -> None:
        self.stdin.append(b"end")


def tool_of(opened: Exec) -> Tool:
    connection = SimpleNamespace(execute=lambda _namespace, _pod, _command: opened)
    return Tool(cast("KubeConnection", connection), "team", "tool")


def test_output_of_a_command_is_its_frames_of_standard_output() -> None:
    opened = Exec([STDOUT + b"fir", LATE, STDERR + b"log", STDOUT, STDOUT + b"st", SUCCESS])
    assert list(tool_of(opened).run(["cat"], b"request")) == [b"fir", b"", b"st"]
    assert opened.stdin == [b"request", b"end"]
    assert (opened.pings, opened.shut) == (1, True)


@pytest.mark.parametrize(
    ("frames", "error", "says"),
    [
        ([STDERR + b"why", failure(3)], CommandError, "3"),
        ([STDOUT + b"half", CUT], UnavailableError, "the connection to the pod tool broke .* try again"),
        ([STDOUT + b"half"], UnavailableError, "the connection to the pod tool ended too soon; try again"),
        ([STATUS + b'{"status": "Failure", "message": "no such file"}'], ClientError, "could not be run .* no such"),
    ],
    ids=["exit code", "cut off", "no status", "not started"],
)
def test_failed_command_raises(frames: list[bytes | Exception], error: type[ClientError], says: str) -> None:
    opened = Exec(frames)
    with pytest.raises(error, match=says) as raised:
        list(tool_of(opened).run(["false"]))
    assert not isinstance(raised.value, CommandError) or (raised.value.code, raised.value.errors) == (3, "why")
    assert opened.shut


def archive(*others: tarfile.TarInfo) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as made:
        for other in others:
            made.addfile(other)
        for name, content in (("tables/a.safetensors", b"rows" * 4000), ("model.json", b"{}")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            made.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def other_member(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


def export_of(frames: list[bytes | Exception], to: Path) -> None:
    (to / "model.json").write_text("of an earlier export", "utf-8")
    export_from(TrainerPod(tool_of(Exec(frames))), ExportRequest("uid/anchor"), str(to))


def test_exported_model_is_unpacked_from_frames_of_any_size(tmp_path: Path) -> None:
    sent = archive()
    export_of([*(STDOUT + sent[place : place + 1000] for place in range(0, len(sent), 1000)), SUCCESS], tmp_path)
    assert (tmp_path / "tables" / "a.safetensors").read_bytes() == b"rows" * 4000
    assert (tmp_path / "model.json").read_bytes() == b"{}"


@pytest.mark.parametrize(
    ("ends", "error", "says"),
    [
        ([CUT], UnavailableError, "try again"),
        ([SUCCESS], TrialError, "the model came incomplete .* try again"),
        ([STDERR + b"log\n" + to_json(Problem("Damaged", "a is missing.", "Name another.")).encode(), failure(1)],
         TrialError, "a is missing. Name another."),
    ],
    ids=["cut off", "incomplete", "failed"],
)  # fmt: skip
def test_incomplete_export_leaves_no_model_json(
    ends: list[bytes | Exception], error: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=says):
        export_of([STDOUT + archive()[:5000], *ends], tmp_path)
    assert not (tmp_path / "model.json").exists()


@pytest.mark.parametrize(
    "member",
    [other_member("../beside"), other_member("tables/../../beside"), other_member("link", tarfile.SYMTYPE)],
    ids=["above", "above by a detour", "a link"],
)
def test_member_of_an_archive_that_is_no_file_below_the_folder_is_refused(
    member: tarfile.TarInfo, tmp_path: Path
) -> None:
    to = tmp_path / "model"
    to.mkdir()
    with pytest.raises(TrialError, match="which is not a file of a model"):
        export_of([STDOUT + archive(member), SUCCESS], to)
    assert [*tmp_path.rglob("*")] == [to], "nothing was written"
