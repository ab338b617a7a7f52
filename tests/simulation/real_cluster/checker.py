"""Invariants of a job after each round, and at its end. Pure: documents in, sentences out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.harness.space import condition
from cluster.jobs import failures, ledger, uids
from simulation.real_cluster.failpoints.fault import Fault, Hit
from simulation.real_cluster.timeline import Injection

Status = dict[str, Any]
Ranges = tuple[tuple[int, int], ...]


@dataclass
class Injected:
    """An injection as it went: the members that it hit, and the error that kept it from being done or undone."""

    injection: Injection
    hit: Hit | None = None  # None: it was not injected
    error: str = ""

    @property
    def fault(self) -> Fault:
        return self.injection.fault

    @property
    def jobs(self) -> set[str]:
        """The jobs of the members that it hit."""
        return {job for job, *_ in self.hit or ()}


@dataclass(frozen=True)
class Look:
    """A job at one moment: the uid of its resource, and its status."""

    uid: str
    status: Status

    @property
    def spent(self) -> int:
        """Sample-shards that are charged."""
        return sum(_length(ranges) for ranges in ledger(self.status).values())


@dataclass
class Guarantee:
    """The limits of a job of the storm: `lossless` if it has no budget; `refuses`: reasons that faults may bring."""

    lossless: bool
    refuses: set[str] = field(default_factory=set)


def after_round(job: str, guarantee: Guarantee, before: Look, after: Look, injections: Iterable[Injected]) -> list[str]:
    """Return what is wrong with a job that is whole again after these injections."""
    done = [injection for injection in injections if injection.hit is not None]
    found = _budget(guarantee, after.status)
    if before.uid != after.uid:
        if not any("spec" in injection.fault.takes and job in injection.jobs for injection in done):
            found.append("its resource is another one")
        return found
    found += _replaced(job, before.status, after.status, done)
    resized = len(before.status["shards"]) != len(after.status["shards"])
    if not resized and after.spent > before.spent and not _may_lose(job, done):
        found.append(f"{after.spent - before.spent} sample-shards are lost, which no fault of the round accounts for")
    return found


def _budget(guarantee: Guarantee, status: Status) -> list[str]:
    budget, found = status["budget"], []
    if budget["spent"] > budget["limit"]:
        found.append(f"{budget['spent']} of {budget['limit']} is spent")
    if budget["reserved"]:
        found.append(f"{budget['reserved']} is still reserved")
    if guarantee.lossless and budget["spent"]:
        found.append(f"{budget['spent']} is lost, and nothing may be")
    return found


def _replaced(job: str, before: Status, after: Status, injections: list[Injected]) -> list[str]:
    """Only members that were hit are replaced, and each replacement that no user asked for has its failure."""
    old, new, found = uids(before), uids(after), []
    allowed = {
        who[1:]
        for injection in injections
        if injection.fault.cost.touches
        for who in injection.hit or ()
        if who[0] == job
    }
    by_user = {
        who[1:]
        for injection in injections
        if "spec" in injection.fault.takes
        for who in injection.hit or ()
        if who[0] == job
    }
    recorded = {(role, index, incarnation) for role, index, incarnation, _ in failures(after)}
    for member in sorted(member for member in old if member in new and old[member] != new[member]):
        role, index = member
        incarnation = before[f"{role}s"][index]["incarnation"]
        if member not in allowed:
            found.append(f"{role}/{index} was replaced, and nothing hit it")
        elif member not in by_user and (role, index, incarnation) not in recorded:
            found.append(f"{role}/{index}-{incarnation} was replaced, and no failure records it")
    return found


def _may_lose(job: str, injections: list[Injected]) -> bool:
    """Return whether the injections let this job lose samples: state dies, or pods end while they cannot save."""
    costs = [injection.fault.cost for injection in injections]
    mine = [injection.fault.cost for injection in injections if job in injection.jobs]
    hindered = any(cost.hinders for cost in costs)
    return any(cost.kills or (cost.ends and hindered) for cost in mine)


def at_the_end(guarantee: Guarantee, job: dict[str, Any], account: Mapping[int, Ranges]) -> list[str]:
    """Return what is wrong with a job that has ended; `account` has the losses in its result's manifests."""
    status = job["status"]
    if status["phase"] != "Succeeded":
        return _refusal(guarantee, job)
    found, progress, recorded = _budget(guarantee, status), status["progress"], ledger(status)
    if progress["samples"] != progress["totalSamples"]:
        found.append(f"{progress['samples']} of {progress['totalSamples']} samples are trained")
    if guarantee.lossless and any(account.values()):
        found.append(f"its model misses {dict(account)}, and nothing may be lost")
    whole = (status["counters"]["generation"], status["budget"]["rollbacks"]) == (1, 0)
    everywhere = _everywhere(recorded.values())
    if whole and {i: _without(r, everywhere) for i, r in recorded.items()} != {
        i: _without(r, everywhere) for i, r in account.items()
    }:
        found.append(f"the ledger says {recorded}, and the manifests {dict(account)}")
    if not status["ledger"].get("carriedSampleShards") and recorded.keys() == account.keys():
        more = {index: ranges for index, ranges in account.items() if not _covers(recorded[index], ranges)}
        if more:
            found.append(f"the model misses {more}, and the ledger has only {recorded}")
    return found


def _refusal(guarantee: Guarantee, job: dict[str, Any]) -> list[str]:
    message = condition(job, "Failed")
    reason, message = message.get("reason", ""), message.get("message", "")
    if reason not in guarantee.refuses:
        return [f"it failed: {reason}: {message}"]
    return [] if len(message.split()) > 5 else [f"it failed with {reason}, without a remedy: {message!r}"]


def _covers(ledger: Ranges, account: Ranges) -> bool:
    return all(any(first <= begin and end <= last for first, last in ledger) for begin, end in account)


def _everywhere(ranges: Iterable[Ranges]) -> set[int]:
    """Samples that all shards are charged with: those that the dense network lost are, and stand in no manifest."""
    return set.intersection(*({sample for one in each for sample in range(*one)} for each in ranges))


def _without(ranges: Ranges, everywhere: set[int]) -> set[int]:
    return {sample for one in ranges for sample in range(*one)} - everywhere


def _length(ranges: Ranges) -> int:
    return sum(end - first for first, end in ranges)
