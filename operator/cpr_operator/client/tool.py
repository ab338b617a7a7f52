"""Commands in a pod, as by `kubectl exec`, and a pod that exists for the duration of a context.

Standard streams travel in the frames of a websocket; the first byte of a frame is its channel.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDIN_CHANNEL, STDOUT_CHANNEL
from websocket import ABNF, WebSocketException, WebSocketTimeoutException

from cpr_operator.client.job import Object
from cpr_operator.client.kube_connection import ClientError, KubeConnection, UnavailableError, WaitTimeoutError

POLL_S = 0.5
#: Enough time to pull an image.
START_S = 300.0
#: The interval of pings on an idle connection.
PING_S = 30.0
#: The length of the end of a command's standard error in `CommandError`.
STDERR_BYTES = 1 << 16


class CommandError(ClientError):
    """A command in a pod that failed; `errors` is the end of its standard error."""

    def __init__(self, code: int, errors: str) -> None:
        super().__init__(f"the command ended with exit code {code}: {errors}")
        self.code = code
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Tool:
    """A running pod, for commands."""

    connection: KubeConnection
    namespace: str
    name: str

    def run(self, command: Sequence[str], stdin: bytes = b"") -> Generator[bytes]:
        """Run a command, and yield its standard output.

        Raises CommandError if its exit code is not 0, UnavailableError if the connection breaks.
        """
        opened = self.connection.execute(self.namespace, self.name, command)
        errors, status = bytearray(), bytearray()
        try:
            if stdin:
                opened.write_stdin(stdin)
            opened.close_channel(STDIN_CHANNEL)
            for channel, data in _frames(opened.sock):
                if channel == STDOUT_CHANNEL:
                    yield data
                elif channel == STDERR_CHANNEL:
                    errors += data
                    del errors[:-STDERR_BYTES]
                elif channel == ERROR_CHANNEL:
                    status += data
        except (WebSocketException, OSError) as error:
            raise UnavailableError(f"the connection to the pod {self.name} broke ({error}); try again") from None
        finally:
            opened.sock.shutdown()  # the library's `close` leaves a connection open that the server has closed
        code = _exit_code(bytes(status), self.name)
        if code:
            raise CommandError(code, errors.decode(errors="replace"))


@contextlib.contextmanager
def opened_tool(connection: KubeConnection, manifest: Object) -> Iterator[Tool]:
    """Create a pod, wait until it runs, and delete it when the context ends. Raises ClientError."""
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    uid = connection.create_pod(namespace, manifest)["metadata"]["uid"]
    try:
        _await_running(connection, namespace, name)
        yield Tool(connection, namespace, name)
    finally:
        connection.delete_pod(namespace, name, uid, None)


def _await_running(connection: KubeConnection, namespace: str, name: str) -> None:
    began = time.monotonic()
    while True:
        status = connection.pod(namespace, name).get("status") or {}
        if status.get("phase") == "Running":
            return
        if status.get("phase") in {"Succeeded", "Failed"}:
            raise ClientError(f"the pod {namespace}/{name} has ended before it was used: {_why(status)}")
        if time.monotonic() - began > START_S:
            raise WaitTimeoutError(
                f"the pod {namespace}/{name} does not run after {START_S:g} s: {_why(status)}; mend that and try again"
            )
        time.sleep(POLL_S)


def _why(status: Object) -> str:
    """Return the reasons in the status of a pod that does not run."""
    states = [state for each in status.get("containerStatuses") or () for state in (each.get("state") or {}).values()]
    pending = [each for each in status.get("conditions") or () if each.get("status") == "False"]
    reasons = [f"{each.get('reason')} {each.get('message') or ''}".strip() for each in (status, *states, *pending)
            if each.get("reason")]  # fmt: skip
    return "; ".join(reasons) or "its status has no reason"


def _frames(socket: Any) -> Iterator[tuple[int, bytes]]:
    """Yield the channel and the content of each frame until the server closes."""
    socket.settimeout(PING_S)
    while True:
        try:
            opcode, frame = socket.recv_data_frame(control_frame=True)
        except WebSocketTimeoutException:
            socket.ping()
            continue
        if opcode == ABNF.OPCODE_CLOSE:
            return
        if opcode in {ABNF.OPCODE_BINARY, ABNF.OPCODE_TEXT} and frame.data:
            yield frame.data[0], frame.data[1:]


def _exit_code(answer: bytes, pod: str) -> int:
    """Return the exit code in the Status object that ends a command."""
    try:
        status = json.loads(answer)
    except ValueError:
        raise UnavailableError(f"the connection to the pod {pod} ended too soon; try again") from None
    if status.get("status") == "Success":
        return 0
    causes = (status.get("details") or {}).get("causes") or ()
    code = next((each["message"] for each in causes if each.get("reason") == "ExitCode"), None)
    if code is None:
        raise ClientError(f"the command could not be run in the pod {pod}: {status.get('message')}")
    return int(code)
