"""A trainer's process, from its environment to its exit code, and the values of its reports that are looked up."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from cpr_contract import CONTRACT_VERSION
from cpr_contract.env import CONTROL_PORT, HTTP_PORT, ROLE_SHARD, ROLE_TRAINER
from cpr_contract.manifests import probe_prefix
from cpr_contract.processor import PRECISION_EMULATED, is_emulated, read_cpuinfo
from cpr_contract.reports import SPILL_UNAVAILABLE, ExitCode, Problem, TrainerReport, TrainerState
from cpr_contract.roster import Counters, TrainerRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.exchange import Exchange
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.exchange.pools import Spill
from cpr_trainer.history.records import recording
from cpr_trainer.runtime import (
    Environment,
    RosterFile,
    StatusServer,
    backoff,
    end_with,
    problem_of,
    stop_on_sigterm,
)
from cpr_trainer.store import StoreError, StoreUnsuitableError, open_store
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.allreduce.group_follower import GroupFollower
from cpr_trainer.trainer.allreduce.group_leader import GroupLeader
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.async_sync.async_groups import AsyncFollower, AsyncLeader
from cpr_trainer.trainer.compute import set_threads
from cpr_trainer.trainer.control import ControlSignals, Finished, RosterChanged, Superseded, Terminated
from cpr_trainer.trainer.frozen_inputs import FrozenInputs
from cpr_trainer.trainer.loop import Loop, MakeGroup
from cpr_trainer.trainer.resume import TrainerControlBlock
from cpr_trainer.trainer.setup import Setup, is_new_job
from cpr_trainer.trainer.state import DenseState
from cpr_trainer.trainer.status import ReportCollector, StatusPublisher
from cpr_trainer.trainer.store_retry import retry_store_errors
from cpr_trainer.trainer.trackers import read_trackers, tracking

_LOG = logging.getLogger(__name__)

#: States in which a report names the members that are waited for.
_WAITING = frozenset({TrainerState.JOINING, TrainerState.PAUSED, TrainerState.MEETING, TrainerState.FINISHING})


def run(environment: Environment, control_block: TrainerControlBlock | None = None) -> ExitCode:
    """Train until the job is done, or something ends this process. `control_block`: that of its supervisor, if any.

    Leaves the result (leader) or the dense save of a flush in the termination file. Raises TrainerError for problems
    that a person has to correct.
    """
    rosters = RosterFile(environment.roster_file, TrainerRoster)
    control = ControlSignals(rosters, stop_on_sigterm())
    control.start()
    try:
        return _train(environment, control, control_block, rosters)
    except Terminated:
        return ExitCode.FLUSHED  # This process has trained nothing yet.
    except Superseded:
        return ExitCode.SUPERSEDED
    finally:
        control.close()


def _train(
    environment: Environment,
    control: ControlSignals,
    control_block: TrainerControlBlock | None,
    rosters: RosterFile[TrainerRoster],
) -> ExitCode:
    trackers = read_trackers(environment.trackers, environment.job)
    file = None if control_block is None else control_block.file
    spill, problem = _open_spill(environment, file)
    first = _first_report(environment, 1 if control_block is None else control_block.process_number)
    status = StatusPublisher(first)
    if problem := problem or _slow_precision(environment.job):
        status.add_lasting_problem(problem)
    registry = CollectorRegistry()
    registry.register(ReportCollector(status))
    rosters.on_read = status.on_roster_note
    with (
        recording(environment),
        StatusServer(
            environment.address,
            environment.port_base + HTTP_PORT,
            status=status.report,
            healthy=lambda: control.healthy() or status.state is TrainerState.LOADING,
            ready=status.ready,
            registry=registry,
            receive=environment.roster_receiver(rosters.offer),
            on_recorded=environment.recorded_receiver(status.on_recorded),
            certificates=environment.certificates,
        ),
    ):
        roster = control.wait_for_roster()
        environment.identify(ROLE_TRAINER, roster.index)
        # A resumed process reports nothing before it has its state: its samples would be fewer than shards received.
        resumes = control_block is not None and _resumes(control_block, roster)
        if control.stop.is_set() and not resumes:
            raise Terminated("stopped before the first step")
        loading: dict[str, Any] = {
            "index": roster.index,
            "incarnation": roster.incarnation,
            "counters": roster.counters,
            "state": TrainerState.LOADING,
        }
        if not resumes:
            status.update(**loading)
        try:
            setup = _set_up(environment, control, status, roster)
        except StoreUnsuitableError as error:
            # Another attempt would end in the same way.
            _LOG.error("%s: %s", error.reason, error)
            return end_with(environment.termination_file, problem_of(error), ExitCode.STORE_UNSUITABLE)
        total_samples = setup.order.total_samples
        workers = setup.workers
        set_threads(workers.threads)
        known = total_samples if setup.followed is None else setup.followed.order.known_samples
        status.update(total_samples=known, workers=workers.count, workers_reason=workers.reason)
        exchange = Exchange(
            setup.job,
            setup.rank,
            setup.incarnation,
            environment.key,
            total_samples,
            file=file,
            spill=spill,
            certificates=environment.certificates,
        )
        loop = Loop(setup, control, status, exchange, _group_maker(environment, setup, control), control_block)
        if resumes:
            status.update(**loading)
        if control_block is not None:
            control.pause_detector.on_tick = control_block.tick

        def fill_in(report: TrainerReport) -> TrainerReport:
            if control_block is not None:
                report = replace(report, in_place_s=control_block.in_place_s)
            return _looked_up(report, exchange, loop, setup.job)

        status.fill_in = fill_in
        with closing(setup.trace), tracking(trackers, status.report, lambda: loop.coordinator is not None):
            code = _run(loop, environment)
        if spill is not None:
            spill.remove()  # no other process begins after this end
        return code


def _resumes(control_block: TrainerControlBlock, roster: TrainerRoster) -> bool:
    """Record the member that this process is; return whether it continues from the state of the last process."""
    control_block.identify(roster.index, roster.incarnation)
    return control_block.holds(roster.counters.generation)


def _set_up(environment: Environment, control: ControlSignals, status: StatusPublisher, roster: TrainerRoster) -> Setup:
    """Return the setup once the store allows to read it. The leader of a new job probes the store first."""

    def poll() -> None:
        with suppress(RosterChanged):  # Nothing depends on the roster yet: only a stop ends the wait.
            control.poll_interrupts()

    def leads() -> bool:
        return control.current is not None and control.current.leader == control.current.index

    job = environment.job
    # Data of a user's code has no files, so no new ones can come.
    uri = job.data.uri if job.data.entrypoint is None else None
    evaluated = None if job.evaluation is None else job.evaluation.uri
    inputs = (
        FrozenInputs(job.job_uid, uri, leads, poll, lambda count: status.update(new_files=count)),
        FrozenInputs(job.job_uid, evaluated, leads, poll, evaluates=True),
    )
    store = open_store(job.snapshots.store, *environment.store_access)
    final: type[StoreError] | tuple[()] = ()
    if retry_store_errors(lambda: is_new_job(store, roster, job.job_uid), status, poll):
        final = StoreUnsuitableError
        retry_store_errors(lambda: store.probe(probe_prefix(job.job_uid)), status, poll, final=final)
    return retry_store_errors(
        lambda: Setup.read(environment, roster, store, inputs, status.add_lasting_problem), status, poll, final=final
    )


def _run(loop: Loop, environment: Environment) -> ExitCode:
    try:
        result = loop.run()
    except Finished:
        return ExitCode.OK
    except Terminated:
        saved = loop.flush()
        return end_with(environment.termination_file, saved, ExitCode.FLUSHED) if saved else ExitCode.FLUSHED
    loop.close()  # The committer may still be pruning.
    return end_with(environment.termination_file, result, ExitCode.OK)


def _group_maker(environment: Environment, setup: Setup, control: ControlSignals) -> MakeGroup:
    """Return a function that makes the group of a roster; with several trainers this process listens from now on."""
    if setup.job.trainers == 1:
        return lambda _roster, _state: Group()
    me = Identity(setup.job.job_uid, ROLE_TRAINER, setup.rank, setup.incarnation, 0)
    port, job = environment.port_base + CONTROL_PORT, setup.job
    key, address = environment.key, environment.address
    listener = PeerListener(me, key, address, port, job.silence_s, environment.certificates)
    liveness = PeerLiveness()
    listener.start()
    control.listener_alive = listener.alive

    def delays_s() -> Iterator[float]:
        return backoff(random.Random(), first_s=0.1, cap_s=1.0)

    def make(roster: TrainerRoster, state: DenseState) -> Group:
        leads = roster.leader == setup.rank
        if not job.lockstep and leads:
            return AsyncLeader(listener, liveness, roster, job.dense_sync, state)
        if not job.lockstep:
            return AsyncFollower(listener, liveness, roster, state, delays_s)
        return (
            GroupLeader(listener, liveness, roster) if leads else GroupFollower(listener, liveness, roster, delays_s())
        )

    return make


def _open_spill(environment: Environment, file: ResumeFile | None) -> tuple[Spill | None, Problem | None]:
    """Return the space for pushes on disk, if the job has some; or the problem, and then fewer pushes are kept."""
    size_bytes = environment.job.spill_bytes
    if not size_bytes or not environment.job.replay.enabled:
        return None, None
    try:
        return Spill(environment.scratch_dir / "pushes", size_bytes, file), None
    except OSError as error:
        problem = Problem(
            SPILL_UNAVAILABLE,
            f"spec.recovery.replay.spill asks for {size_bytes} bytes on the scratch volume, and has none: "
            f"{error.strerror}. The oldest pushes go as soon as the memory for them is full.",
            "Free the disk of the node, or request less in a new job.",
        )
        return None, problem


def _slow_precision(job: JobSpec) -> Problem | None:
    """Return the problem of a precision that the processor emulates, if there is one."""
    if not is_emulated(job.precision, job.device, read_cpuinfo()):
        return None
    return Problem(
        PRECISION_EMULATED,
        "spec.trainers.precision is bf16, and this processor has no instructions for it: training is far slower than "
        "in fp32.",
        "Train in fp32 in a new job, or on nodes with AVX512-BF16 or AMX.",
    )


def _first_report(environment: Environment, process_number: int) -> TrainerReport:
    """Return the report before the first roster: its index is -1."""
    return TrainerReport(
        contract=CONTRACT_VERSION,
        job_uid=environment.job.job_uid,
        index=-1,
        incarnation=0,
        counters=Counters(roster=0, group=0, generation=0),
        state=TrainerState.STARTING,
        step=0,
        samples=0,
        samples_started=0,
        total_samples=0,
        waiting_for=(),
        silent=(),
        lost=(),
        problem=None,
        lives=process_number,
        sparse_updates=environment.job.sparse_updates,
    )


def _looked_up(report: TrainerReport, exchange: Exchange, loop: Loop, job: JobSpec) -> TrainerReport:
    """Return the report with missing and unresponsive members, the data so far, and the leader's saves."""
    group, coordinator = loop.group, loop.coordinator

    def unresponsive(for_s: float) -> tuple[str, ...]:
        trainers = group.unresponsive(for_s) if group else ()
        return _names(ROLE_SHARD, exchange.unresponsive(for_s)) + _names(ROLE_TRAINER, trainers)

    report = replace(report, silent=unresponsive(job.silence_s), overdue=unresponsive(job.overdue_s))
    if report.state in _WAITING or not job.lockstep:  # without lockstep others train meanwhile
        trainers = group.missing() if group else ()
        shards = exchange.unavailable() if report.state in _WAITING else ()
        report = replace(report, waiting_for=_names(ROLE_SHARD, shards) + _names(ROLE_TRAINER, trainers))
    if loop.known_data is not None:
        report = replace(report, data=loop.known_data.pinned)
    # Read before the saves, because it follows from them: saves read later are no older.
    forgotten, saved = exchange.forgotten(), exchange.saved()
    if forgotten or coordinator is not None:
        report = replace(
            report,
            forgotten=forgotten,
            shard_saves=tuple(save.samples for save in saved),
            shard_incarnations=tuple(save.incarnation for save in saved),
            shard_protected=exchange.protected() if job.parity_shards else (),
        )
    if coordinator is None:
        return report
    saves = coordinator.committer.state
    return replace(
        report,
        problem=report.problem or saves.problem,
        shard_lives=exchange.process_numbers(),
        dense_save=saves.dense_save or report.dense_save,
        anchors=saves.anchors,
        saves=saves.saves,
        save_stall_s=coordinator.cost.stalled_s,
        commit_s=saves.commit_s,
        early_save_s=coordinator.schedule.early_s,
    )


def _names(role: str, indices: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"{role}/{index}" for index in indices)
