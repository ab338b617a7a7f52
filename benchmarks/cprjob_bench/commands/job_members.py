"""The members of a killed job: processes of this machine, or pods of a cluster."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from cpr_contract import env
from cpr_contract.trace import TracedStep
from cpr_operator.api.status import Status
from cpr_operator.cli.kill_options import Role
from cpr_operator.cli.run import running_pod
from cpr_operator.client import Client, ClientError, CommandError, NoObjectError, UnavailableError
from cpr_operator.cluster.local.cluster import LocalCluster
from cpr_operator.cluster.views import JobView
from cprjob_bench.commands.killed_job import TRACE, Tier, time_limit


class LocalMembers:
    """Processes that a `LocalCluster` started; its working folder is `folder`."""

    def __init__(self, cluster: LocalCluster, job: JobView, folder: Path) -> None:
        self._cluster = cluster
        self._job = job
        self._folder = folder
        self._read: dict[Path, int] = {}
        self._ends_s: list[float] = []

    async def status(self) -> Status:
        """See `Members`."""
        return Status.model_validate((await self._cluster.get_job(self._job.namespace, self._job.name)).status)

    async def runs(self, role: Role, index: int) -> bool:
        """See `Members`."""
        return running_pod(await self._cluster.list_pods(self._job), role, index) is not None

    async def kill(self, tier: Tier, index: int) -> None:
        """Send SIGKILL to a member's process, or to all of its pod."""
        pod = running_pod(await self._cluster.list_pods(self._job), tier.role, index)
        if pod is not None:
            self._cluster.signal_pod(self._job.namespace, pod.name, signal.SIGKILL, whole=tier.pod)

    async def ends_s(self) -> Sequence[float]:
        """Return the end of each step of all incarnations of the trainer. Each call reads new lines only."""
        for file in sorted(self._folder.glob(f"pods/*-{env.ROLE_TRAINER}-0-*/volumes/*/{TRACE}")):
            with file.open("rb") as source:
                source.seek(self._read.get(file, 0))
                whole = _whole_lines(source.read())
            self._read[file] = self._read.get(file, 0) + len(whole)
            self._ends_s += _ends(whole)
        return self._ends_s


_RETRY_S = 1.0


class PodMembers:
    """Pods of a cluster, with the user's own rights: to delete pods, and to run commands in them."""

    def __init__(self, client: Client, job: str) -> None:
        self._client = client
        self._job = job
        self._read = 0
        self._ends_s: list[float] = []

    async def status(self) -> Status:
        """Return the job's status, with retries while the API server is unavailable. Raises TrialError."""
        async with time_limit("the API server did not answer"):
            while True:
                try:
                    return (await asyncio.to_thread(self._client.get, self._job)).status
                except UnavailableError:
                    await asyncio.sleep(_RETRY_S)

    async def runs(self, role: Role, index: int) -> bool:
        """Return whether a command can be run in a member's pod."""
        try:
            await self._run(role, index, "true")
        except ClientError:
            return False
        return True

    async def kill(self, tier: Tier, index: int) -> None:
        """Delete a member's pod without a grace period, or kill the process that its supervisor has started."""
        if tier.pod:
            await asyncio.to_thread(self._client.kill, self._job, tier.role, index)
        else:
            await self._run(tier.role, index, "kill -KILL $(cat /proc/1/task/1/children)")

    async def ends_s(self) -> Sequence[float]:
        """Return the end of each step of the trainer's pod. Each call reads new lines only."""
        try:
            found = await self._run("trainer", 0, f"tail -c +{self._read + 1} {env.SCRATCH_MOUNT}/{TRACE}")
        except (CommandError, NoObjectError, UnavailableError):  # no trace yet, or the pod is unavailable
            return self._ends_s
        whole = _whole_lines(found)
        self._read += len(whole)
        self._ends_s += _ends(whole)
        return self._ends_s

    async def _run(self, role: Role, index: int, command: str) -> bytes:
        """Return the output of a shell command in a member's pod."""

        def run() -> bytes:
            return b"".join(self._client.execute(self._job, role, index, ("sh", "-c", command)))

        return await asyncio.to_thread(run)


def _whole_lines(text: bytes) -> bytes:
    """Return all lines except an incomplete last one."""
    return text[: text.rfind(b"\n") + 1]


def _ends(lines: bytes) -> list[float]:
    return [TracedStep.of_line(line).ended_s for line in lines.decode().splitlines()]
