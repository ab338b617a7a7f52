"""A shard's server: puts the parts of a shard together and turns the main loop."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable
from dataclasses import replace
from time import monotonic

import numpy as np

from cpr_contract import env
from cpr_contract.env import ROLE_SHARD
from cpr_contract.reports import ExitCode, ShardState
from cpr_contract.roster import ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.restore.restorer import Restorer
from cpr_trainer.checkpoint.write.checkpointer import ShardCheckpointer
from cpr_trainer.checkpoint.write.decisions import Chooser, Chosen
from cpr_trainer.checkpoint.write.writer import Writer, WriterThread
from cpr_trainer.embedding.arena import Home, empty_segments
from cpr_trainer.embedding.memory import Memory, SizeOf, Toucher
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.priority import make_tracker, population_of
from cpr_trainer.exchange.frames import Operation
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.runtime import (
    BadSpecError,
    Environment,
    RosterFile,
    StatusServer,
    Trace,
    end_with,
    stop_on_sigterm,
)
from cpr_trainer.shard.lifecycle import TERMINATED, Ending, Life
from cpr_trainer.shard.metrics import Metrics
from cpr_trainer.shard.redundancy import Redundancy
from cpr_trainer.shard.resume import Page
from cpr_trainer.shard.server import Server
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.standby import Spare
from cpr_trainer.shard.status import Board
from cpr_trainer.store import Store, open_store

_LOG = logging.getLogger(__name__)

TURN_S = 0.05


def serve(environment: Environment, page: Page, memory: Memory, listener: socket.socket) -> int:
    """Be one life of a shard's server until its end; return the exit code.

    `memory` is for the rows; `page` lies before them. Raises TrainerError for what only a person can mend.
    """
    shard = _Shard(environment, stop_on_sigterm(), page, memory, listener)
    pages = StatusServer(
        environment.address,
        environment.port_base + env.HTTP_PORT,
        status=lambda: shard.board.report,
        healthy=shard.board.healthy,
        ready=shard.board.ready,
        registry=shard.metrics.registry,
        receive=environment.receiver(shard.rosters.offer),
    )
    with pages:
        ending = shard.live()
    if ending.save is None:
        return ending.code
    return end_with(environment.termination_file, ending.save, ExitCode(ending.code))


class _Shard:
    """One shard process. `stop` is set by SIGTERM, or here by a roster that says so."""

    def __init__(
        self, environment: Environment, stop: threading.Event, page: Page, memory: Memory, listener: socket.socket
    ) -> None:
        self.board = Board(environment.job)
        self.metrics = Metrics()
        self._environment = environment
        self._stop = stop
        self._page = page
        self._memory = memory
        self._listener = listener
        self.rosters = RosterFile(environment.roster_file, ShardRoster)

    def live(self) -> Ending:
        """Wait for a roster, then be the shard that it names."""
        job, spare = self._environment.job, None
        store = open_store(job.snapshots.store, *self._environment.store_access)
        while (first := self._poll()) is None and not self._stop.is_set():
            spare = spare or Spare(job, store, Toucher(self._memory, rows_end(job)), self.board.report)
            if not spare.turn():
                self.rosters.wait(TURN_S)
            self.board.show(replace(spare.report, lives=self._page.process_number))
        # What the last life left has to be saved, even where this one is told to stop before it begins.
        if first is None or (self._stop.is_set() and self._page.read() is None):
            return Ending(TERMINATED)
        return self._be(first, store)

    def _be(self, first: ShardRoster, store: Store) -> Ending:
        if first.newest_incarnation > first.incarnation:
            return Ending(ExitCode.SUPERSEDED)
        _LOG.info(
            "is shard %d of generation %d, incarnation %d", first.index, first.counters.generation, first.incarnation
        )
        job = self._environment.job
        home = Home.of(job, placement_of(job), first.index, self._memory)
        arena = home.arena
        self.metrics.rows.set(len(arena))
        service = Service(job, home.placement, first.index, arena, self.metrics)
        service.trace = Trace(self._environment.step_trace)
        life = Life(job, first, service, self.metrics, self._page)
        heeds_claims = job.replay.enabled
        parts = Writer(
            store, arena, job.snapshots.max_bytes_per_s, self._page.process_number, heeds_claims=heeds_claims
        )
        writer = WriterThread(parts, life.post, random.Random())
        chooser = _chooser(job, home, life.post)
        if chooser is not None:
            tracker = chooser.tracker
            service.on_change = tracker.note
            self.metrics.tracker_bytes.set_function(lambda: tracker.memory_bytes)
        saving = ShardCheckpointer(job, first, home, writer, self.metrics.saves, chooser)
        parity = None
        if job.parity_shards:
            parity = Redundancy(job, first, home, service, self._environment.key, random.Random())
            life.on_rebuilt = parity.adopt
        server = Server(
            self._listener,
            self._environment.key,
            lambda: _identity(job, life.roster),
            service,
            trainers=first.trainers,
            limit_bytes=service.encoding.payload_bytes(Operation.PUSH, len(arena), arena.values),
            newest=self._page.newest_trainers,
            desk=None if parity is None else parity.desk,
        )
        try:
            restorer = Restorer(
                store, job, home, life.post, random.Random(), None if parity is None else parity.rebuild
            )
            life.begin(restorer, saving)
            return self._turn_until_the_end(life, server, parity)
        finally:
            server.close()
            if parity is not None:
                parity.close()
            writer.close()
            service.trace.close()

    def _turn_until_the_end(self, life: Life, server: Server, parity: Redundancy | None) -> Ending:
        job = self._environment.job
        next_look = monotonic()
        while True:
            if life.state is ShardState.READY:
                self._page.record_serving(monotonic())
            server.turn(TURN_S, monotonic)
            self._page.tick()
            if monotonic() < next_look:
                continue  # frames come by the thousand; everything else has time
            next_look = monotonic() + TURN_S
            life.turn()
            if parity is not None:
                parity.follow(life.roster)
                parity.turn(monotonic())
            if self._stop.is_set():
                server.stop()
                ending = life.terminate()
            else:
                ending = self._follow(life, server)
            now = monotonic()
            self.board.show(life.report(server.silent(now, job.silence_s), server.silent(now, job.overdue_s)))
            self._show_figures(life)
            if ending is not None:
                return ending

    def _follow(self, life: Life, server: Server) -> Ending | None:
        """Look at the roster; return how to end if it says so."""
        roster = self._poll()
        if roster is None:
            return None
        if roster.counters.group != life.roster.counters.group:
            server.forget_silent(monotonic(), self._environment.job.silence_s)
        return life.follow(roster)

    def _poll(self) -> ShardRoster | None:
        """Return a newer roster, if there is one, and stop if it says so."""
        roster = self.rosters.poll()
        if roster is not None and roster.stop:
            self._stop.set()
        return roster

    def _show_figures(self, life: Life) -> None:
        report = self.board.report
        self.metrics.applied_step.set(report.applied_step)
        if report.row_updates is not None:
            self.metrics.lost_row_updates.set(max(report.row_updates.lost, 0))
        self.metrics.protected_samples.set(report.protected_samples or 0)
        self.metrics.generation.set(report.counters.generation)
        self.metrics.ready.set(life.state is ShardState.READY)


def placement_of(job: JobSpec) -> Placement:
    """Return where the job's rows lie. Raises BadSpecError if there are too few."""
    try:
        return Placement.of(job.model, job.shards)
    except ValueError as error:
        raise BadSpecError(f"{error}.", "Give the model more rows, or the job fewer shards.") from error


def largest_bytes(job: JobSpec, arrays: Callable[[tuple[int, ...], Memory], object]) -> int:
    """Return the bytes that the page and these arrays of a shard take at most: which one this is only its roster tells.

    arrays: takes those of a shard that has so many rows of each band. Raises as `placement_of`.
    """
    placement, largest = placement_of(job), 0
    for sizes in {placement.sizes(index) for index in range(job.shards)}:
        size = SizeOf()
        Page(size, job)
        arrays(sizes, size)
        largest = max(largest, size.bytes)
    return largest


def rows_end(job: JobSpec) -> int:
    """Return where in the memory of the largest shard its rows end: the page lies before them, all else after."""
    return largest_bytes(job, lambda sizes, memory: empty_segments(job, sizes, memory))


def _chooser(job: JobSpec, home: Home, tell: Callable[[Chosen], None]) -> Chooser | None:
    """Return what chooses the rows of priority saves; None with the strategy `Full`."""
    rules = job.snapshots
    if rules.strategy == "Full":
        return None
    population = population_of(home.placement, home.index)
    quota = population.quota(rules.fraction)
    try:
        tracker = make_tracker(rules.strategy, home.arena, population, quota, np.random.default_rng())
    except ValueError as error:
        raise BadSpecError(str(error), "Correct snapshots.strategy.") from error
    return Chooser(tracker, quota, tell)


def _identity(job: JobSpec, roster: ShardRoster) -> Identity:
    return Identity(job.job_uid, ROLE_SHARD, roster.index, roster.incarnation, roster.counters.generation)
