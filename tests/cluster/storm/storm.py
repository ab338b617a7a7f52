"""A storm: rounds of faults over several jobs, and what was found."""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from cluster.storm.catalogue import BY_NAME, CATALOGUE, LEFT_OUT
from cluster.storm.checker import Done, after_round
from cluster.storm.fault import TROUBLE, Fault, NotNowError, World, surely
from cluster.storm.jobs import KINDS, Job
from cluster.storm.timeline import Blow, Round, timeline


def possible(backend: str, only: Sequence[str] = ()) -> list[Fault]:
    """Return the faults that such a cluster can have, of those named; of all if none is.

    Raises ValueError for a name that the catalogue lacks.
    """
    if unknown := set(only) - BY_NAME.keys():
        raise ValueError(f"no such fault: {', '.join(sorted(unknown))}; the catalogue has {', '.join(BY_NAME)}")
    return [f for f in CATALOGUE if (backend == "bare" or not f.bare) and (not only or f.kind.name in only)]


@dataclass
class Storm:
    """It strikes until its time is over; `found` are sentences, `tally` counts the blows by fault and outcome."""

    world: World
    seed: int
    log: Path
    only: Sequence[str] = ()
    jobs: list[Job] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    tally: Counter[tuple[str, str]] = field(default_factory=Counter)
    blamed: Counter[str] = field(default_factory=Counter)
    begun: float = field(default_factory=time.monotonic)

    def rage(self, minutes: float, first: int) -> None:
        """Strike round by round, from the round `first` of the seed, then let all jobs end."""
        self.jobs = [Job(self.world, kind, 1) for kind in KINDS]
        for job in self.jobs:
            job.start()
        kinds = [fault.kind for fault in possible(self.world.cluster.nodes.backend, self.only)]
        for drawn in timeline(self.seed, kinds):
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
        """Strike, wait until all is well again, and look at every job."""
        self.say(str(drawn))
        before = {job.run.name: job.look() for job in self.jobs}
        with ThreadPoolExecutor(len(drawn.blows)) as pool:
            done = list(pool.map(self._strike, drawn.blows))
        if any(blow.said for blow in done):
            self._heal()
        for blow in (blow for blow in done if blow.said and blow.struck is not None):
            self._find(str(drawn), blow.blow.fault, [f"it could not be undone: {blow.said}"], [blow])
        self.world.cluster.wait_operator(within_s=180)
        for job in self.jobs:
            for blow in done:
                job.promise.refuses |= blow.fault.cost.refuses
        for place, job in enumerate(self.jobs):
            name = job.run.name
            try:
                after = job.settle()
            except TimeoutError as late:
                self._find(str(drawn), name, [str(late)], done)
                self._follow(place)
                continue
            found = after_round(name, job.promise, before[name], after, done)
            ended = job.ended
            self._find(str(drawn), name, found + (job.judge() if ended else []), done)
            if ended:
                self.say(f"{name} has ended: {job.look().status['phase']}")
            if ended or found:
                self._follow(place)

    def _strike(self, blow: Blow) -> Done:
        """Strike and undo. What keeps the blow from being undone is a finding, what keeps it from coming is none."""
        done = Done(blow, BY_NAME[blow.fault])
        time.sleep(blow.after_s)
        try:
            with done.fault.strike(self.world, Random(blow.dice)) as struck:
                done.struck = struck
                time.sleep(blow.holds_s)
        except NotNowError as missing:
            done.said = "" if done.struck is not None else f"needs {missing}"
        except (*TROUBLE, TimeoutError) as trouble:
            done.said = f"{type(trouble).__name__}: {trouble}"
        outcome = "not injected" if done.struck is None else "injected"
        self.tally[blow.fault, outcome] += 1
        whom = ", ".join(f"{job} {role}/{index}" for job, role, index in sorted(done.struck or ()))
        self.say(f"  {blow.fault}: {outcome} {whom} {done.said}".rstrip())
        return done

    def _heal(self) -> None:
        if self.world.cluster.nodes.backend == "bare":
            self.world.control.heal()
        surely(self.world.cluster.nodes.heal)

    def _find(self, when: str, name: str, found: Sequence[str], blows: Sequence[Done]) -> None:
        for each in found:
            self.found.append(f"seed {self.seed}, {when}: {name}: {each}")
            self.say(f"FOUND: {name}: {each}")
            self.blamed.update(blow.blow.fault for blow in blows if blow.struck is not None)
        if found:
            path = self.log.with_suffix(f".{len(self.found)}.log")
            path.write_text(self.world.space.diagnostics() + self.world.cluster.operator_log())
            self.say(f"all that explains it is in {path}")

    def _follow(self, place: int) -> None:
        """Put the next job of its kind in the place of one that has ended, or that is not what it should be."""
        job = self.jobs[place]
        job.leave()
        self.jobs[place] = Job(self.world, job.kind, job.number + 1)
        self.jobs[place].start()

    def say(self, what: str) -> None:
        """Print a line with the seconds since the storm began, and keep it."""
        line = f"{time.monotonic() - self.begun:6.0f} {what}"
        print(line, flush=True)
        with self.log.open("a") as file:
            file.write(line + "\n")

    def table(self) -> str:
        """Return the faults, how often each was injected, and how often something was found in a round with it."""
        backend = self.world.cluster.nodes.backend
        lines = ["| fault | injected | not injected | rounds with a finding |", "|---|---|---|---|"]
        for fault in CATALOGUE:
            name = fault.kind.name
            times = self.tally[name, "injected"], self.tally[name, "not injected"], self.blamed[name]
            lines.append(f"| {name} | " + " | ".join(map(str, times)) + " |")
        out = LEFT_OUT if backend == "bare" else LEFT_OUT | {f.kind.name: "kind" for f in CATALOGUE if f.bare}
        return "\n".join([*lines, "left out:", *(f"- {name}: {why}" for name, why in out.items())])
