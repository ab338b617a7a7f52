"""A storm: rounds of faults over several jobs, and its findings."""

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest

from cluster.harness import Cluster, Space
from cluster.harness.control import ControlPlane
from cluster.harness.nodes import Nodes
from simulation.real_cluster.checker import Injected, after_round
from simulation.real_cluster.failpoints.fault import TROUBLE, Fault, NotNowError, Target, surely
from simulation.real_cluster.failpoints.nodes import NODES
from simulation.real_cluster.failpoints.operations import OPERATOR, USER, give_credentials
from simulation.real_cluster.failpoints.pods import PODS, PROCESSES
from simulation.real_cluster.failpoints.services import API, STORE
from simulation.real_cluster.timeline import Injection, Round, timeline
from simulation.real_cluster.workload import KINDS, Job

CATALOGUE: tuple[Fault, ...] = (*PODS, *PROCESSES, *NODES, *STORE, *API, *OPERATOR, *USER)
BY_NAME = {fault.name: fault for fault in CATALOGUE}
LEFT_OUT = {
    "a node's clock is wrong": "nodes share the machine's clock: a time namespace shifts only clocks that are not set",
    "a node's disk is full": "nodes share the machine's disk; a kubelet with a full one deletes images, "
    "which no registry of this cluster has",
    "the link of a node is late": "the kernel has no netem; a slow link delays by its queue, and a lossy one by what "
    "is sent again",
    "the operator is of the version before": "its images take minutes to build; tests/cluster/test_upgrade.py has it",
    "the operator is killed at a call of our choice": "no call can be named from outside; "
    "tests/crashes/test_crash_at_every_call.py kills it before and after each",
}


def possible(backend: str, only: Sequence[str] = ()) -> list[Fault]:
    """Return the faults that such a cluster can have, of those named; of all if none is.

    Raises ValueError for a name that the catalogue lacks.
    """
    if unknown := set(only) - BY_NAME.keys():
        raise ValueError(f"no such fault: {', '.join(sorted(unknown))}; the catalogue has {', '.join(BY_NAME)}")
    return [f for f in CATALOGUE if (backend == "bare" or not f.bare) and (not only or f.name in only)]


@dataclass
class Storm:
    """Rounds of faults until the time is over. `tally` counts the injections by fault and outcome."""

    target: Target
    seed: int
    log: Path
    only: Sequence[str] = ()
    jobs: list[Job] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)
    blamed: Counter[str] = field(default_factory=Counter)
    begun: float = field(default_factory=time.monotonic)

    def run(self, minutes: float, first: int) -> None:
        """Inject round by round, from the round `first` of the seed, then let all jobs end."""
        self.jobs = [Job(self.target, kind, 1) for kind in KINDS]
        for job in self.jobs:
            job.start()
        faults = possible(self.target.cluster.nodes.backend, self.only)
        for drawn in timeline(self.seed, faults):
            if time.monotonic() - self.begun > 60 * minutes:
                break
            if drawn.number >= first:
                self._round(drawn)
        for job in self.jobs:
            try:
                job.finish()
            except TimeoutError as late:
                self._find("the end", job.run.name, [str(late)], [])
            else:
                self._find("the end", job.run.name, job.judge(), [])

    def _round(self, drawn: Round) -> None:
        """Inject, wait until all is well again, and look at every job."""
        self.write(str(drawn))
        before = {job.run.name: job.look() for job in self.jobs}
        with ThreadPoolExecutor(len(drawn.injections)) as pool:
            done = list(pool.map(self._inject, drawn.injections))
        if any(injection.error for injection in done):
            self._heal()
        for injection in (injection for injection in done if injection.error and injection.hit is not None):
            self._find(str(drawn), injection.fault.name, [f"it could not be undone: {injection.error}"], [injection])
        self.target.cluster.wait_operator(within_s=180)
        for job in self.jobs:
            for injection in done:
                job.guarantee.refuses |= injection.fault.cost.refuses
        for place, job in enumerate(self.jobs):
            name = job.run.name
            try:
                after = job.settle()
            except TimeoutError as late:
                self._find(str(drawn), name, [str(late)], done)
                self._next_job(place)
                continue
            found = after_round(name, job.guarantee, before[name], after, done)
            ended = job.ended
            self._find(str(drawn), name, found + (job.judge() if ended else []), done)
            if ended:
                self.write(f"{name} has ended: {job.look().status['phase']}")
            if ended or found:
                self._next_job(place)

    def _inject(self, injection: Injection) -> Injected:
        """Inject and undo. A fault that cannot be undone is a finding, one that cannot be injected is none."""
        done = Injected(injection)
        time.sleep(injection.after_s)
        try:
            with done.fault.inject(self.target, Random(injection.dice)) as hit:
                done.hit = hit
                time.sleep(injection.holds_s)
        except NotNowError as missing:
            done.error = "" if done.hit is not None else f"needs {missing}"
        except (*TROUBLE, TimeoutError) as trouble:
            done.error = f"{type(trouble).__name__}: {trouble}"
        outcome = "not injected" if done.hit is None else "injected"
        self.tally[injection.fault.name, outcome] += 1
        whom = ", ".join(f"{job} {role}/{index}" for job, role, index in sorted(done.hit or ()))
        self.write(f"  {injection.fault.name}: {outcome} {whom} {done.error}".rstrip())
        return done

    def _heal(self) -> None:
        if self.target.cluster.nodes.backend == "bare":
            self.target.control.heal()
        surely(self.target.cluster.nodes.heal)

    def _find(self, when: str, name: str, found: Sequence[str], injections: Sequence[Injected]) -> None:
        for each in found:
            self.found.append(f"seed {self.seed}, {when}: {name}: {each}")
            self.write(f"FOUND: {name}: {each}")
            self.blamed.update(injection.fault.name for injection in injections if injection.hit is not None)
        if found:
            path = self.log.with_suffix(f".{len(self.found)}.log")
            path.write_text(self.target.space.diagnostics() + self.target.cluster.operator_log())
            self.write(f"its logs are in {path}")

    def _next_job(self, place: int) -> None:
        """Put the next job of its kind in the place of one that has ended, or that is not what it should be."""
        job = self.jobs[place]
        job.leave()
        self.jobs[place] = Job(self.target, job.kind, job.number + 1)
        self.jobs[place].start()

    def write(self, what: str) -> None:
        """Print a line with the seconds since the storm began, and keep it."""
        line = f"{time.monotonic() - self.begun:6.0f} {what}"
        print(line, flush=True)
        with self.log.open("a") as file:
            file.write(line + "\n")

    def table(self) -> str:
        """Return the faults, how often each was injected, and how often something was found in a round with it."""
        backend = self.target.cluster.nodes.backend
        lines = ["| fault | injected | not injected | rounds with a finding |", "|---|---|---|---|"]
        for fault in CATALOGUE:
            name = fault.name
            times = self.tally[name, "injected"], self.tally[name, "not injected"], self.blamed[name]
            lines.append(f"| {name} | " + " | ".join(map(str, times)) + " |")
        out = LEFT_OUT if backend == "bare" else LEFT_OUT | {f.name: "kind" for f in CATALOGUE if f.bare}
        return "\n".join([*lines, "left out:", *(f"- {name}: {why}" for name, why in out.items())])


DEFAULTS = {"SEED": "1", "MINUTES": "60", "FIRST": "1", "ONLY": ""}
SEED, MINUTES, FIRST, ONLY = (os.environ.get(name, default) for name, default in DEFAULTS.items())
FOLDER = Path(__file__).parents[3] / ".cache"


@pytest.fixture
def target(cluster: Cluster, clicks: None, space: Space) -> Iterator[Target]:
    cluster.have("operator-next")  # before the first fault: a node with a dead runtime takes no image
    target = Target(cluster, ControlPlane(cluster.nodes.scripts, cluster.kubectl), space)
    give_credentials(target)
    yield target
    nodes: Nodes = cluster.nodes
    if nodes.backend == "bare":
        target.control.heal()
    surely(nodes.heal)
    surely(lambda: cluster.store.remove_user(target.user[0]))


@pytest.mark.realdata
@pytest.mark.timeout(0)
def test_storm_keeps_every_guarantee(target: Target) -> None:
    log = FOLDER / f"storm-{SEED}.log"
    log.unlink(missing_ok=True)
    storm = Storm(target, int(SEED), log, [name.strip() for name in ONLY.split(";") if name.strip()])
    try:
        storm.run(float(MINUTES), int(FIRST))
    finally:
        storm.write(f"seed {SEED}\n{storm.table()}")
    assert storm.found == [], f"seed {SEED}: {len(storm.found)} findings; {log} has the timeline"
