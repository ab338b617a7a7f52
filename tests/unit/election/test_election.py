"""Several electors on one Lease of a fake server, in virtual time. Their clocks differ."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cpr_operator.cluster.protocol import (
    AlreadyExistsError,
    ConflictError,
    NotFoundError,
    RefusedError,
    UnavailableError,
)
from cpr_operator.election import (
    NONE,
    Elector,
    Lease,
    NotLeadingError,
    ObservedLease,
    Term,
    Timing,
    decide_takeover,
    observe,
    taken,
)
from simulation.control_plane.clock import run

TIMING = Timing()


def now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class FakeLeases:
    """One Lease under optimistic locking. `latency_s` is one way; who is cut off waits for ever."""

    lease: Lease | None = None
    latency_s: Callable[[], float] = lambda: 0.05
    error: Exception | None = None
    cut_off: set[str] = field(default_factory=set)
    writes: list[tuple[float, Lease]] = field(default_factory=list)

    def of(self, name: str) -> Caller:
        return Caller(self, name)

    def write(self, lease: Lease) -> Lease:
        self.lease = replace(lease, resource_version=str(len(self.writes) + 1))
        self.writes.append((now(), self.lease))
        return self.lease


@dataclass
class Caller:
    """The server as one operator reaches it."""

    server: FakeLeases
    name: str

    async def read(self) -> Lease | None:
        await self._travel()
        found = self.server.lease
        await self._travel()
        return found

    async def create(self, lease: Lease) -> Lease:
        await self._travel()
        if self.server.lease is not None:
            raise AlreadyExistsError
        written = self.server.write(lease)
        await self._travel()
        return written

    async def replace(self, lease: Lease) -> Lease:
        await self._travel()
        if self.server.lease is None:
            raise NotFoundError
        if self.server.lease.resource_version != lease.resource_version:
            raise ConflictError
        written = self.server.write(lease)
        await self._travel()
        return written

    async def _travel(self) -> None:
        await asyncio.sleep(self.server.latency_s())
        if self.name in self.server.cut_off:
            await asyncio.sleep(1e6)
        if self.server.error is not None:
            raise self.server.error


@dataclass
class Candidate:
    """An elector that stands, leads and stands again; `terms` are those that it had."""

    server: FakeLeases
    name: str
    offset_s: float = 0.0
    terms: list[Term] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.elector = Elector(
            self.server.of(self.name),
            self.name,
            clock=lambda: now() + self.offset_s,
            stamp=lambda: f"{now() - 3600 * self.offset_s:f}",  # its time of day is hours off
            rng=random.Random(self.name),
        )

    async def run(self) -> None:
        while True:
            term = await self.elector.acquire()
            self.terms.append(term)
            self.lost.append(await self.elector.hold(term))

    @property
    def leads(self) -> bool:
        return bool(self.terms) and self.terms[-1].left_s > 0


def play(*names: str, server: FakeLeases, script: Callable[..., Awaitable[None]]) -> None:
    """Run candidates and the script concurrently."""

    async def main() -> None:
        candidates = [Candidate(server, name, offset_s=1000.0 * index) for index, name in enumerate(names)]
        tasks = [asyncio.create_task(each.run()) for each in candidates]
        try:
            async with asyncio.timeout(3600):
                await script(*candidates, *tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    run(main())


def test_one_of_two_is_elected_and_the_other_stands_by() -> None:
    async def script(a: Candidate, b: Candidate, *_: object) -> None:
        await asyncio.sleep(600)
        assert sorted([len(a.terms), len(b.terms)]) == [0, 1]
        assert {lease.holder for _, lease in server.writes} == {server.writes[0][1].holder}
        assert all(later[0] - earlier[0] < 3 for earlier, later in zip(server.writes, server.writes[1:], strict=False))
        assert server.lease is not None
        assert (server.lease.duration_s, server.lease.transitions) == (TIMING.lease_s, 0)
        assert server.lease.acquired != server.lease.renewed

    server = FakeLeases()
    play("a", "b", server=server, script=script)


def test_dead_operator_is_followed_after_its_lease_was_observed_unchanged_for_its_duration() -> None:
    async def script(a: Candidate, b: Candidate, first: asyncio.Task[None], second: asyncio.Task[None]) -> None:
        await asyncio.sleep(60)
        elected, task, other = (a, first, b) if a.terms else (b, second, a)
        task.cancel()
        died, renewed = now(), server.writes[-1][0]
        while not other.terms:  # noqa: ASYNC110 -- there is no event to wait for
            await asyncio.sleep(0.01)
        assert renewed + TIMING.lease_s <= now() <= died + TIMING.lease_s + 2.5
        assert not elected.leads
        assert server.lease is not None
        assert (server.lease.holder, server.lease.transitions) == (other.name, 1)

    server = FakeLeases()
    play("a", "b", server=server, script=script)


def test_partitioned_operator_ends_its_term_before_another_begins() -> None:
    async def script(a: Candidate, b: Candidate, *_: object) -> None:
        await asyncio.sleep(30)
        elected, other = (a, b) if a.leads else (b, a)
        server.cut_off.add(elected.name)
        ended = 0.0
        while not other.terms:
            ended = ended or (0.0 if elected.leads else now())
            await asyncio.sleep(0.01)
        assert 0 < ended < now() - 1
        with pytest.raises(NotLeadingError):
            elected.terms[-1].check()
        assert "could not be renewed" in elected.lost[-1]
        server.cut_off.clear()
        await asyncio.sleep(60)
        assert other.leads
        assert len(elected.terms) == 1

    server = FakeLeases()
    play("a", "b", server=server, script=script)


@pytest.mark.parametrize("error", [UnavailableError("503"), RefusedError("403")])
def test_a_short_outage_changes_nothing_and_a_long_one_only_pauses(error: Exception) -> None:
    async def script(a: Candidate, *_: object) -> None:
        await asyncio.sleep(30)
        server.error = error
        await asyncio.sleep(3)
        server.error = None
        await asyncio.sleep(30)
        assert (len(a.terms), a.leads) == (1, True)
        server.error = error
        await asyncio.sleep(300)
        assert not a.leads
        server.error = None
        await asyncio.sleep(5)
        assert (len(a.terms), a.leads) == (2, True)

    server = FakeLeases()
    play("a", server=server, script=script)


def test_a_lease_that_is_deleted_or_written_over_is_noticed() -> None:
    async def script(a: Candidate, b: Candidate, *_: object) -> None:
        await asyncio.sleep(30)
        elected, other = (a, b) if a.leads else (b, a)
        server.lease = None
        await asyncio.sleep(20)
        assert elected.leads, "it is the first to find out"
        assert not other.terms
        server.write(replace(server.lease or NONE, holder="another"))
        await asyncio.sleep(3)
        assert (elected.leads, elected.lost) == (False, ["another holds it"])

    server = FakeLeases()
    play("a", "b", server=server, script=script)


def test_an_object_that_is_only_labelled_is_renewed_all_the_same() -> None:
    async def script(a: Candidate, *_: object) -> None:
        await asyncio.sleep(30)
        assert server.lease is not None
        server.lease = replace(server.lease, resource_version="labelled")
        await asyncio.sleep(30)
        assert len(a.terms) == 1
        assert a.leads

    server = FakeLeases()
    play("a", server=server, script=script)


def test_a_lease_that_is_given_back_is_taken_at_once() -> None:
    async def script(a: Candidate, b: Candidate, first: asyncio.Task[None], second: asyncio.Task[None]) -> None:
        await asyncio.sleep(30)
        elected, task, other = (a, first, b) if a.leads else (b, second, a)
        task.cancel()
        await elected.elector.release(elected.terms[-1])
        assert not elected.leads
        await asyncio.sleep(3)
        assert other.leads

    play("a", "b", server=FakeLeases(), script=script)


def test_a_standby_can_take_over_once_it_has_read_the_lease() -> None:
    async def script(a: Candidate, *_: object) -> None:
        await asyncio.sleep(10)
        assert not a.elector.answered
        server.error = None
        await asyncio.sleep(3)
        assert a.elector.answered

    server = FakeLeases(error=UnavailableError("starting"))
    play("a", server=server, script=script)


@given(seed=st.integers(0, 10_000), count=st.integers(2, 4))
def test_terms_never_overlap_under_network_faults(seed: int, count: int) -> None:
    """Requests take up to 3 s, operators are cut off and back; at no time may two of them write."""
    rng = random.Random(seed)

    async def script(*all_of_them: object) -> None:
        candidates = [each for each in all_of_them if isinstance(each, Candidate)]
        led = set()
        for _ in range(1200):
            await asyncio.sleep(0.1)
            leading = [each.name for each in candidates if each.leads]
            assert len(leading) <= 1
            led |= set(leading)
            if rng.random() < 0.02:
                server.cut_off ^= {rng.choice(candidates).name}
        assert led or server.cut_off

    server = FakeLeases(latency_s=lambda: rng.choice([0.01, 0.05, 0.3, 1.5]))
    play(*(f"operator-{index}" for index in range(count)), server=server, script=script)


def test_a_term_ends_while_its_process_is_stopped() -> None:
    """The clock runs on meanwhile; whatever comes first afterwards finds the term over."""
    at = 100.0
    term = Term(lambda: at, until=106.0)
    term.check()
    at = 106.0
    with pytest.raises(NotLeadingError):
        term.check()
    term.extend(106.0)  # a renewal that was sent before the stop, and answered after it
    with pytest.raises(NotLeadingError):
        term.check()


@pytest.mark.parametrize(
    ("lease", "since", "take"),
    [
        (Lease("", 8, "x", "x"), 0.0, True),
        (Lease("me", 8, "x", "x"), 0.0, True),
        (Lease("you", 8, "x", "x"), 0.0, True),
        (Lease("you", 8, "x", "x"), 2.5, False),
        (Lease("you", 1, "x", "x"), 8.9, True),
    ],
)
def test_lease_may_be_taken_if_free_or_expired(lease: Lease, since: float, *, take: bool) -> None:
    decision = decide_takeover(ObservedLease(lease, since), "me", now=10.0)
    assert decision.take == take
    assert decision.reason
    assert take or decision.wait_s == since + lease.duration_s - 10.0


def test_only_a_renewal_extends_an_observed_lease() -> None:
    first = observe(None, Lease("you", 8, "x", "x", resource_version="1"), 10.0)
    labelled = observe(first, Lease("you", 8, "x", "x", resource_version="2"), 12.0)
    assert (labelled.since, labelled.lease.resource_version) == (10.0, "2")
    assert observe(labelled, Lease("you", 8, "x", "y", resource_version="3"), 14.0).since == 14.0


def test_a_change_of_holder_is_counted() -> None:
    first = taken(NONE, "a", 8, "t0")
    assert (first.transitions, first.acquired, first.renewed) == (0, "t0", "t0")
    renewed = taken(first, "a", 8, "t1")
    assert (renewed.transitions, renewed.acquired, renewed.renewed) == (0, "t0", "t1")
    assert (taken(renewed, "b", 8, "t2").transitions, taken(renewed, "b", 8, "t2").acquired) == (1, "t2")
