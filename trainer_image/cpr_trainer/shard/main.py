"""A shard's server: it connects the parts of a shard and runs the main loop."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from time import monotonic

import numpy as np

from cpr_contract import env
from cpr_contract.reports import ExitCode, ShardReport, ShardState
from cpr_contract.roster import ShardRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.restore.restorer import Restorer
from cpr_trainer.checkpoint.write.checkpointer import Chooser, Chosen, ShardCheckpointer
from cpr_trainer.checkpoint.write.writer import Writer, WriterThread
from cpr_trainer.embedding.arena import LocalRows, empty_segments
from cpr_trainer.embedding.memory import Memory, Prefaulter, SizeOf
from cpr_trainer.embedding.placement import Placement
from cpr_trainer.embedding.priority import make_tracker, population_of
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import (
    BadSpecError,
    Environment,
    RosterFile,
    StatusServer,
    Trace,
    end_with,
    stop_on_sigterm,
)
from cpr_trainer.shard.lifecycle import TERMINATED, Ending, Lifecycle
from cpr_trainer.shard.redundancy import Redundancy
from cpr_trainer.shard.resume import ShardControlBlock
from cpr_trainer.shard.server import Server
from cpr_trainer.shard.service import Service
from cpr_trainer.shard.status import Metrics, StatusPublisher
from cpr_trainer.shard.steps import StepService
from cpr_trainer.store import Store, open_store

_LOG = logging.getLogger(__name__)

#: The interval of everything but frames.
TICK_S = 0.05
#: Memory that a standby touches between two polls for a roster: the longest wait of a promotion.
_PORTION_BYTES = 16 << 20


def serve(environment: Environment, control_block: ShardControlBlock, memory: Memory, listener: socket.socket) -> int:
    """Run a shard's server until its end; return the exit code.

    The rows are in `memory`, after `control_block`. Raises TrainerError for what a person has to correct.
    """
    shard = _Shard(environment, stop_on_sigterm(), control_block, memory, listener)
    server = StatusServer(
        environment.address,
        environment.port_base + env.HTTP_PORT,
        status=lambda: shard.status.report,
        healthy=shard.status.healthy,
        ready=shard.status.ready,
        registry=shard.metrics.registry,
        receive=environment.roster_receiver(shard.rosters.offer),
        certificates=environment.certificates,
    )
    with server:
        ending = shard.run()
    if ending.save is None:
        return ending.code
    return end_with(environment.termination_file, ending.save, ExitCode(ending.code))


@dataclass
class _Shard:
    """One shard process. SIGTERM sets `stop`, and so does a roster that stops the shard."""

    _environment: Environment
    _stop: threading.Event
    _control_block: ShardControlBlock
    _memory: Memory
    _listener: socket.socket

    def __post_init__(self) -> None:
        self.status = StatusPublisher(self._environment.job)
        self.metrics = Metrics()
        self.rosters = RosterFile(self._environment.roster_file, ShardRoster)

    def run(self) -> Ending:
        """Wait for a roster, then run the shard that it names."""
        job, standby = self._environment.job, None
        store = open_store(job.snapshots.store, *self._environment.store_access)
        while (first := self._poll()) is None and not self._stop.is_set():
            standby = standby or Standby(job, store, Prefaulter(self._memory, rows_end(job)), self.status.report)
            if not standby.tick():
                self.rosters.wait(TICK_S)
            self.status.publish(replace(standby.report, lives=self._control_block.process_number))
        # The rows of the last process have to be saved, even if this one is stopped before it starts to serve.
        if first is None or (self._stop.is_set() and self._control_block.read() is None):
            return Ending(TERMINATED)
        return self._run_shard(first, store)

    def _run_shard(self, first: ShardRoster, store: Store) -> Ending:
        self._control_block.identify(first.index, first.incarnation)
        self._environment.identify(env.ROLE_SHARD, first.index)
        if first.newest_incarnation > first.incarnation:
            return Ending(ExitCode.SUPERSEDED)
        _LOG.info(
            "is shard %d of generation %d, incarnation %d", first.index, first.counters.generation, first.incarnation
        )
        job = self._environment.job
        local = LocalRows.of(job, placement_of(job), first.index, self._memory)
        arena = local.arena
        self.metrics.rows.set(len(arena))
        kind = StepService if job.per_step else Service
        service = kind(job, local.placement, first.index, arena, self.metrics)
        service.trace = Trace(self._environment.step_trace)
        lifecycle = Lifecycle(job, first, service, self._control_block)
        parts = Writer(
            store,
            arena,
            job.snapshots.max_bytes_per_s,
            self._control_block.process_number,
            respect_claims=job.replay.enabled,
        )
        writer = WriterThread(parts, lifecycle.post, random.Random())
        chooser = _chooser(job, local, lifecycle.post)
        if chooser is not None:
            tracker = chooser.tracker
            service.on_change = tracker.note
            self.metrics.tracker_bytes.set_function(lambda: tracker.memory_bytes)
        saving = ShardCheckpointer(job, first, local, writer, self.metrics.saves, chooser)
        parity = None
        if job.parity_shards:
            environment = self._environment
            parity = Redundancy(job, first, local, service, environment.key, random.Random(), environment.certificates)
            lifecycle.on_rebuilt = parity.adopt
        server = Server(
            self._listener,
            self._environment.key,
            lifecycle.identity,
            service,
            trainers=first.trainers,
            limit_bytes=service.frame_rows.largest_push_bytes,
            newest=self._control_block.newest_trainers,
            newest_shards=self._control_block.newest_shards,
            parity_server=None if parity is None else parity.server,
            certificates=self._environment.certificates,
        )
        try:
            restorer = Restorer(
                store, job, local, lifecycle.post, random.Random(), None if parity is None else parity.rebuild
            )
            lifecycle.begin(restorer, saving)
            server.follow(first.shards)
            return self._loop(lifecycle, server, parity)
        finally:
            server.close()
            if parity is not None:
                parity.close()
            writer.close()
            service.trace.close()

    def _loop(self, lifecycle: Lifecycle, server: Server, parity: Redundancy | None) -> Ending:
        job = self._environment.job
        next_tick = monotonic()
        while True:
            if lifecycle.state is ShardState.READY:
                self._control_block.record_serving(monotonic())
            server.tick(TICK_S, monotonic)
            self._control_block.tick()
            if monotonic() < next_tick:
                continue  # there are thousands of frames a second
            next_tick = monotonic() + TICK_S
            lifecycle.tick()
            if parity is not None:
                parity.follow(lifecycle.roster)
                parity.tick(monotonic())
            ending = None
            if self._stop.is_set():
                server.stop()
                ending = lifecycle.terminate()
            elif (roster := self._poll()) is not None:
                server.follow(roster.shards)
                if roster.counters.group != lifecycle.roster.counters.group:
                    server.forget_unresponsive(monotonic(), job.silence_s)
                ending = lifecycle.follow(roster)
            now = monotonic()
            unresponsive, overdue = (server.unresponsive(now, for_s) for for_s in (job.silence_s, job.overdue_s))
            report = lifecycle.report(unresponsive, overdue)
            self.status.publish(report)
            self.metrics.show(report)
            if ending is not None:
                return ending

    def _poll(self) -> ShardRoster | None:
        """Return a newer roster, if there is one; stop if it demands that."""
        roster = self.rosters.poll()
        if roster is not None and roster.stop:
            self._stop.set()
        return roster


class Standby:
    """A process before a roster assigns it a shard: it warms up a little at each `tick`; `report` shows when it has.

    The code is loaded by now. One request warms the connection to the store: names, certificates and credentials. The
    first use of the rows' memory costs more than all else, so that is touched in portions.
    """

    def __init__(self, job: JobSpec, store: Store, memory: Prefaulter, report: ShardReport) -> None:
        """`report` is that of a process without a roster."""
        self._job = job
        self._store = store
        self._memory = memory
        self._report = report
        self._request = threading.Thread(target=self._warm_store, name="warm-store", daemon=True)
        self._request.start()

    @property
    def warm(self) -> bool:
        """True if nothing is left to do."""
        return self._memory.left_bytes == 0 and not self._request.is_alive()

    @property
    def report(self) -> ShardReport:
        """The report, with the state `Spare` once it is warm."""
        return replace(self._report, state=ShardState.SPARE if self.warm else ShardState.STARTING)

    def tick(self) -> bool:
        """Touch a portion of the memory; return whether some is left."""
        self._memory.touch(_PORTION_BYTES)
        return self._memory.left_bytes > 0

    def _warm_store(self) -> None:
        try:
            self._store.list(f"{self._job.job_uid}/spare/")
        except TrainerError as error:
            # A shard without a store reports that and waits; a spare only logs it.
            _LOG.warning("the store does not answer: %s", error)


def placement_of(job: JobSpec) -> Placement:
    """Return the placement of the job's rows. Raises BadSpecError if there are too few."""
    try:
        return Placement.of(job.model, job.shards)
    except ValueError as error:
        raise BadSpecError(f"{error}.", "Give the model more rows, or the job fewer shards.") from error


def largest_bytes(job: JobSpec, arrays: Callable[[tuple[int, ...], Memory], object]) -> int:
    """Return the bytes that the control block and the arrays of the largest shard take.

    The shard's index is not known before its roster. `arrays` takes the arrays of a shard with these rows of each band
    from the memory. Raises as `placement_of`.
    """
    placement, largest = placement_of(job), 0
    for sizes in {placement.sizes(index) for index in range(job.shards)}:
        size = SizeOf()
        ShardControlBlock(size, job)
        arrays(sizes, size)
        largest = max(largest, size.bytes)
    return largest


def rows_end(job: JobSpec) -> int:
    """Return where the rows end in the memory of the largest shard: after the control block, before all else."""
    return largest_bytes(job, lambda sizes, memory: empty_segments(job, sizes, memory))


def _chooser(job: JobSpec, local: LocalRows, report: Callable[[Chosen], None]) -> Chooser | None:
    """Return the chooser of the rows of priority saves; None with the strategy `Full`."""
    rules = job.snapshots
    if rules.strategy == "Full":
        return None
    population = population_of(local.placement, local.index)
    quota = population.quota(rules.fraction)
    try:
        tracker = make_tracker(rules.strategy, local.arena, population, quota, np.random.default_rng())
    except ValueError as error:
        raise BadSpecError(str(error), "Correct snapshots.strategy.") from error
    return Chooser(tracker, quota, report)
