"""The trainer image's own code, asked by commands: in a process of this machine, or on a cluster in a pod.

The pod has the store's credentials as the job's own pods have them, and lasts as long as the command.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from cpr_contract.codec import to_json
from cpr_contract.spec import JobSpec
from cpr_operator.cli.source import is_on_cluster, job_name
from cpr_operator.cli.trials import Ask, TrialError, ask_trainer_image, why_ended
from cpr_operator.cli.where import AnswerError, Where
from cpr_operator.desired.names import JobId
from cpr_operator.desired.store_pod import tool_pod
from cpr_operator.reconcile.effects import pod_plan

if TYPE_CHECKING:
    from cpr_operator.client import Tool

#: Where the image has its Python and its code.
_PROGRAM = ("python3", "-m", "cpr_trainer")
_SUFFIX_BYTES = 3


class TrainerPod:
    """The trainer image's code in a pod, with the spec and the store of one job."""

    def __init__(self, tool: Tool) -> None:
        self._tool = tool

    def ask(self, role: str, job: JobSpec | None, request: object) -> Generator[bytes]:
        """See `Ask`. The job is always the pod's own."""
        del job
        with closing(self._run(role, stdin=f"{to_json(request)}\n".encode())) as chunks:
            yield from io.BufferedReader(_Chunks(chunks))

    @contextmanager
    def output(self, *arguments: str) -> Iterator[io.BufferedReader[_Chunks]]:
        """What a role writes to its standard output. Reading its end raises TrialError if the role failed."""
        with closing(self._run(*arguments)) as chunks, io.BufferedReader(_Chunks(chunks)) as reader:
            yield reader

    def _run(self, *arguments: str, stdin: bytes = b"") -> Generator[bytes]:
        from cpr_operator.client import CommandError  # noqa: PLC0415 -- loaded with the client

        command = ("env", "CPR_TERMINATION_FILE=/dev/stderr", *_PROGRAM, *arguments)
        try:
            yield from self._tool.run(command, stdin)
        except CommandError as error:
            *log, last_word = error.errors.splitlines() or ("",)
            raise TrialError(why_ended(last_word, (*log, last_word), error.code)) from None


@contextmanager
def trainer_pod(source: str | None, where: Where) -> Iterator[TrainerPod]:
    """A pod for the job `cpr/NAME` for as long as the context lasts. Raises AnswerError."""
    with where.client() as client:
        job = client.get(job_name(str(source)))
        if job.status.runtime is None:
            raise AnswerError(f"{job.name} has not started, so it has saved nothing")
        plan = pod_plan(JobId(job.namespace, job.name, job.uid), job.spec, job.status)
        with client.tool(tool_pod(plan, secrets.token_hex(_SUFFIX_BYTES))) as tool:
            yield TrainerPod(tool)


@contextmanager
def asking(source: str | None, where: Where, environment: Mapping[str, str]) -> Iterator[Ask]:
    """Whom to ask about the job or the store of this name. Raises AnswerError."""
    if is_on_cluster(source):
        with trainer_pod(source, where) as pod:
            yield pod.ask
    else:
        yield partial(ask_trainer_image, environment=environment)


class _Chunks(io.RawIOBase):
    """A stream of the bytes of all chunks."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Read what is there next; 0 at the end."""
        while not self._left:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._left = memoryview(chunk)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size
