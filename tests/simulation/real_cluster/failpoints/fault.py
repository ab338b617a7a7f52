"""A fault of a real cluster, its cost, and the target that it hits."""

import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeVar

from kubernetes.client.exceptions import ApiException
from minio.error import MinioException
from urllib3.exceptions import HTTPError

from cluster.harness import Cluster, Pod, Space
from cluster.harness.control import ControlPlane
from cluster.harness.kubectl import KubectlError
from cluster.harness.space import Role
from cluster.jobs import FINAL, Run

Group = Literal["pods", "processes", "nodes", "store", "API server", "operator", "user"]
#: A member of a job, as (job, role, index).
Who = tuple[str, Role, int]
Hit = frozenset[Who]
NO_MEMBER: Hit = frozenset()
#: Errors of a call while a fault is injected.
TROUBLE = (KubectlError, ApiException, HTTPError, MinioException, RuntimeError, OSError, subprocess.SubprocessError)
UNDO_S = 180
#: Phases in which faults hit a job: a storm hits recoveries, too.
TRAINING = {"Running", "Recovering", "RollingBack"}
Answer = TypeVar("Answer")


class NotNowError(Exception):
    """The fault has no target; the message has its needs."""


@dataclass(frozen=True)
class Cost:
    """The cost of a fault, in addition to time.

    `kills`: members that are hit may lose updates that no save holds, and report them. `ends`: they get SIGTERM first,
    and lose nothing unless saves are hindered as well. `hinders`: while it lasts, saves may fail. `touches`: members
    that are hit may be replaced; without it none may. `refuses`: the reasons for which a job may give up, each with
    a message.
    """

    kills: bool = False
    ends: bool = False
    hinders: bool = False
    touches: bool = False
    refuses: frozenset[str] = frozenset()


#: It may cost nothing but time.
FREE = Cost()
KILLS = Cost(kills=True, touches=True)
ENDS = Cost(ends=True, touches=True)
HINDERS = Cost(hinders=True)


@dataclass
class Target:
    """The cluster, the storm's namespace, and the jobs that are in it now."""

    cluster: Cluster
    control: ControlPlane
    space: Space
    runs: dict[str, Run] = field(default_factory=dict)
    #: (access key, secret key) that the jobs' Secret holds, and how often it changed.
    user: tuple[str, str] = ("", "")
    rotations: int = 0

    def training(self) -> list[Run]:
        """Return the jobs that train or recover; raise NotNowError if there is none."""
        runs = [run for run in self.runs.values() if surely(run.status).get("phase") in TRAINING]
        if not runs:
            raise NotNowError("a job that trains")
        return runs

    def someone(self, random: Random, role: Role | None = None, job: str | None = None) -> tuple[Who, Pod]:
        """Draw a member that runs, of any job that trains or of this one."""
        found = self.members(run for run in self.training() if job is None or run.name == job)
        running = [(who, pod) for who, pod in found if pod.container_id and pod.phase == "Running" and not pod.deleting]
        fit = [each for each in running if role is None or each[0][1] == role]
        if not fit:
            raise NotNowError(f"a {role or 'member'} that runs")
        return random.choice(fit)

    def members(self, runs: Iterable[Run]) -> list[tuple[Who, Pod]]:
        """Return the members of these jobs with their pods, in order."""
        pods = {pod.uid: pod for pod in surely(self.space.pods)}
        return [
            ((run.name, *member), pods[uid])
            for run in runs
            for member, uid in sorted(surely(run.uids).items())
            if uid in pods
        ]

    def on(self, *nodes: int) -> Hit:
        """Return all members on these nodes."""
        names = {self.cluster.nodes.name(number) for number in nodes}
        return frozenset(who for who, pod in self.members(self.runs.values()) if pod.node in names)

    def peers(self, *nodes: int) -> Hit:
        """Return all members of the jobs that have one on these nodes."""
        jobs = {job for job, *_ in self.on(*nodes)}
        return frozenset(who for who, _ in self.members(self.runs.values()) if who[0] in jobs)

    def all_of(self, job: str) -> Hit:
        """Return all members of a job, as its status has them."""
        return frozenset((job, *member) for member in surely(self.runs[job].uids))


#: Injects the fault when it is entered, undoes it when it is left, and yields the members that it hits.
Inject = Callable[[Target, Random], AbstractContextManager[Hit]]
Span = tuple[float, float]
AT_ONCE: Span = (0.0, 0.0)


@dataclass(frozen=True)
class Fault:
    """One fault of the catalogue.

    No two faults of a round take the same thing. A fault lasts for `holds_s`, between the two; AT_ONCE if there is
    nothing to undo. `bare`: only the bare cluster can have it.
    """

    group: Group
    name: str
    inject: Inject
    cost: Cost
    takes: AbstractSet[str] = frozenset()
    holds_s: Span = AT_ONCE
    bare: bool = False


def once(act: Callable[[Target, Random], Hit]) -> Inject:
    """Return the injection of an act that leaves nothing to undo."""

    @contextmanager
    def inject(target: Target, random: Random) -> Iterator[Hit]:
        yield act(target, random)

    return inject


def during(enter: Callable[[Target, Random], AbstractContextManager[object]]) -> Inject:
    """Return the injection of a block that hits no member of a job."""

    @contextmanager
    def inject(target: Target, random: Random) -> Iterator[Hit]:
        with enter(target, random):
            yield NO_MEMBER

    return inject


def held(act: Callable[[Target], object], undo: Callable[[Target], object], within_s: float = 20) -> Inject:
    """Return the injection of an act that hits no member of a job, with its undo."""

    @contextmanager
    def inject(target: Target, random: Random) -> Iterator[Hit]:
        surely(lambda: act(target), within_s)
        try:
            yield NO_MEMBER
        finally:
            surely(lambda: undo(target))

    return inject


def surely(act: Callable[[], Answer], within_s: float = UNDO_S) -> Answer:
    """Retry while a fault may stand in the way; raise the last error."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            return act()
        except TROUBLE:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.5)


def ended(run: Run) -> bool:
    """Return whether the job has ended."""
    return surely(run.status).get("phase") in FINAL
