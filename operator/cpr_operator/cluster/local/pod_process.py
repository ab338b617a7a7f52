"""One pod of local mode: a v1 Pod as JSON, its process, and its phases from Pending to its end."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
import signal
import sys
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from cpr_contract import env
from cpr_operator.api.base import format_time
from cpr_operator.api.quantities import main_container
from cpr_operator.cluster.local.pod_folder import LOOPBACK, PodFolder
from cpr_operator.cluster.protocol import Manifest, RefusedError
from cpr_operator.cluster.views import PodView, pod_view

LAUNCHER = Path(__file__).with_name("launch.py")
SHELL_SIGNAL_BASE = 128
#: The command in place of the image: its entry point, run by the same Python.
TRAINER_IMAGE = (sys.executable, "-m", "cpr_trainer")
NODE = "local"
DEFAULT_GRACE_S = 30
#: The niceness of pods that do not train: on one machine they would take processor time from the members. On a cluster
#: they have requests of their own.
_NICENESS = {env.ROLE_PUBLISHER: 10}
#: Seconds between two attempts to start a pod.
RETRY_S = 2.0


class PodProcess:
    """A running process and its descendants: a group that never outlives this process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls, command: tuple[str, ...], environment: Mapping[str, str], log: Path, niceness: int = 0
    ) -> PodProcess:
        """Start `command` (an absolute path and its arguments) with exactly this environment. Raises OSError."""
        launcher = (sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(niceness))
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *launcher,
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,  # Ctrl-C in the terminal is for this process alone
            )
        return cls(process)

    @property
    def code(self) -> int | None:
        """The exit code by Python's convention; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """The exit code once it has ended; 128+n for signal n, as Kubernetes shows it. Its group is killed then."""
        code = await self._process.wait()
        self.signal(signal.SIGKILL)
        return SHELL_SIGNAL_BASE - code if code < 0 else code

    def signal_child(self, number: signal.Signals) -> bool:
        """Send a signal to the process that the first one of the group has started last; False if there is none."""
        pid = self._process.pid
        try:
            *_, child = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
            os.kill(int(child), number)
        except (OSError, ValueError):
            return False
        return True

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group; a group that has ended is left alone."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


class LocalPod:
    """A pod and its process. `changed` is called after every change of its state that the kubelet would report."""

    def __init__(
        self,
        manifest: Manifest,
        folder: PodFolder,
        port_base: int,
        clock: Callable[[], float],
        changed: Callable[[], None],
    ) -> None:
        check_manifest(manifest)
        # As the API server would store it, with ports of this machine.
        self.object: dict[str, Any] = copy.deepcopy(dict(manifest))
        self.object["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": format_time(clock())}
        self.object["status"] = {"phase": "Pending"}
        main = next(each for each in self.object["spec"]["containers"] if each["name"] == env.MAIN_CONTAINER)
        others = [each for each in main.get("env", ()) if each["name"] != env.PORT_BASE]
        main["env"] = [*others, {"name": env.PORT_BASE, "value": str(port_base)}]
        self.port_base = port_base
        self._folder = folder
        self._clock = clock
        self._changed = changed
        self._process: PodProcess | None = None

    @property
    def view(self) -> PodView:
        """The pod as the controller sees it."""
        return pod_view(self.object)

    @property
    def ended(self) -> bool:
        """True if its phase is terminal."""
        return self.object["status"]["phase"] in {"Succeeded", "Failed"}

    @property
    def deleting(self) -> bool:
        """True once it is deleted."""
        return "deletionTimestamp" in self.object["metadata"]

    def annotate(self, annotations: Mapping[str, str], labels: Mapping[str, str]) -> None:
        """Set annotations and labels; the files that show the annotations follow at once."""
        self.object["metadata"].setdefault("annotations", {}).update(annotations)
        self.object["metadata"].setdefault("labels", {}).update(labels)
        if self._process is not None:
            self._folder.write_annotations(self.object)

    def mark_deleted(self, grace_s: int) -> float:
        """Send SIGTERM; returns the end of the grace period. A later request can only shorten it."""
        meta, until = self.object["metadata"], self._clock() + grace_s
        if (earlier := self.view.deleting_until) is not None:
            until = min(until, earlier)
        meta["deletionTimestamp"], meta["deletionGracePeriodSeconds"] = format_time(until), grace_s
        self.signal(signal.SIGTERM)
        self._changed()
        return until

    def signal(self, number: signal.Signals, *, whole: bool = True) -> bool:
        """Send a signal to all processes, or to the one that a supervisor has forked; False if none runs."""
        if self._process is None or self.ended:
            return False
        if whole or not any(each["name"] == env.KEEPER for each in main_container(self.object).get("env", ())):
            self._process.signal(number)
            return True
        return self._process.signal_child(number)

    async def run(self, environment: Mapping[str, str]) -> None:
        """Start the process, with retries, and wait for its end."""
        while not self.deleting:
            try:
                process = await self._start(environment)
            except (RefusedError, OSError) as error:
                waiting = {"reason": "CreateContainerConfigError", "message": str(error)}
                self._report("Pending", {"waiting": waiting})
                await asyncio.sleep(RETRY_S)
            else:
                self._end(await process.wait())
                return

    async def _start(self, environment: Mapping[str, str]) -> PodProcess:
        self._folder.write_volumes(self.object)
        variables = {**environment, **self._folder.environment(self.object)}
        main = main_container(self.object)
        command = (*main.get("command", TRAINER_IMAGE), *main.get("args", ()))
        self._process = await PodProcess.start(command, variables, self._folder.log, _NICENESS.get(self.view.role, 0))
        self._folder.write_annotations(self.object)  # they may have changed in the meantime
        self.object["spec"]["nodeName"] = NODE
        self._report("Running", {"running": {}}, podIP=LOOPBACK)
        if (until := self.view.deleting_until) is not None:  # it may have been deleted meanwhile
            self._process.signal(signal.SIGTERM if self._clock() < until else signal.SIGKILL)
        return self._process

    def _end(self, code: int) -> None:
        reason = "Completed" if code == os.EX_OK else "Error"
        ended = {"exitCode": code, "reason": reason, "message": self._folder.read_termination()}
        self._report("Failed" if code else "Succeeded", {"terminated": ended})

    def _report(self, phase: str, state: Mapping[str, Any], **more: str) -> None:
        status = {"phase": phase, "containerStatuses": [{"name": env.MAIN_CONTAINER, "state": state}]}
        new = {**self.object["status"], **status, **more}
        if new != self.object["status"]:
            self.object["status"] = new
            self._changed()


def check_manifest(manifest: Manifest) -> None:
    """Raise RefusedError for a manifest that an API server or a kubelet would refuse."""
    if not main_container(manifest):
        raise RefusedError(f"pod {manifest['metadata']['name']} has no container named {env.MAIN_CONTAINER}")
