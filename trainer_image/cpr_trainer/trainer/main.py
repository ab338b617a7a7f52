"""The trainer's process, from its environment to its exit code."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry

from cpr_contract import CONTRACT_VERSION
from cpr_contract.env import CONTROL_PORT, HTTP_PORT, ROLE_TRAINER
from cpr_contract.manifests import probe_prefix
from cpr_contract.processor import PRECISION_EMULATED, is_emulated, read_cpuinfo
from cpr_contract.reports import SPILL_UNAVAILABLE, ExitCode, Problem, TrainerReport, TrainerState
from cpr_contract.roster import Counters, TrainerRoster
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.memory import ResumeFile
from cpr_trainer.exchange import Exchange
from cpr_trainer.exchange.handshake import Identity
from cpr_trainer.exchange.pools import Spill
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
from cpr_trainer.trainer.allreduce.group import Group, SoloGroup
from cpr_trainer.trainer.allreduce.group_follower import GroupFollower
from cpr_trainer.trainer.allreduce.group_leader import GroupLeader
from cpr_trainer.trainer.allreduce.listener import PeerListener, PeerLiveness
from cpr_trainer.trainer.async_sync.async_groups import AsyncFollower, AsyncLeader
from cpr_trainer.trainer.control import ControlSignals, Finished, RosterChanged, Superseded, Terminated
from cpr_trainer.trainer.frozen_inputs import FrozenInputs
from cpr_trainer.trainer.live import look
from cpr_trainer.trainer.loop import Loop, MakeGroup
from cpr_trainer.trainer.resume import TrainerControlBlock
from cpr_trainer.trainer.setup import Setup, is_new_job
from cpr_trainer.trainer.state import DenseState
from cpr_trainer.trainer.status import ReportCollector, StatusPublisher
from cpr_trainer.trainer.store_retry import retry_store_errors
from cpr_trainer.trainer.trackers import read_trackers, tracking

_LOG = logging.getLogger(__name__)


def run(environment: Environment, control_block: TrainerControlBlock | None = None) -> ExitCode:
    """Be a trainer until the job is done, or something ends this process. `control_block`: its supervisor's, if it has one.

    Leaves the result (leader) or the dense save of a flush in the termination file. Raises TrainerError for what
    only a person can mend.
    """
    rosters = RosterFile(environment.roster_file, TrainerRoster)
    control = ControlSignals(rosters, stop_on_sigterm())
    control.start()
    try:
        return _train(environment, control, control_block, rosters)
    except Terminated:
        return ExitCode.FLUSHED  # Nothing was trained by this process yet.
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
    spill, problem = _spill(environment, file)
    lasting_problem = problem or _slowness(environment.job)
    status = StatusPublisher(
        _first_report(environment, 1 if control_block is None else control_block.process_number), lasting_problem
    )
    registry = CollectorRegistry()
    registry.register(ReportCollector(status))
    rosters.on_read = status.on_roster_note
    with StatusServer(
        environment.address,
        environment.port_base + HTTP_PORT,
        status=status.report,
        healthy=lambda: control.healthy() or status.state is TrainerState.LOADING,
        ready=lambda: status.state in _READY,
        registry=registry,
        receive=environment.roster_receiver(rosters.offer),
        on_recorded=environment.recorded_receiver(status.on_recorded),
    ):
        roster = control.wait_for_roster()
        # One that goes on says nothing before it knows where: it would tell less than shards may have been sent.
        resumes = control_block is not None and control_block.holds(roster.counters.generation)
        if not resumes:
            status.update(**_who(roster))
        try:
            setup = _set_up(environment, control, status, roster)
        except StoreUnsuitableError as error:
            return _refuse(environment, error)
        total_samples = setup.order.total_samples
        workers = setup.workers
        status.update(total_samples=total_samples, workers=workers.count, workers_reason=workers.reason)
        exchange = Exchange(setup.job, setup.rank, setup.incarnation, setup.key, total_samples, file=file, spill=spill)
        loop = Loop(setup, control, status, exchange, _group_maker(setup, control), control_block)
        if resumes:
            status.update(**_who(roster))
        if control_block is not None:
            control.pause_detector.on_tick = control_block.tick
        status.fill_in = lambda report: look(
            _timed(report, control_block), exchange, loop.group, loop.coordinator, setup.job
        )
        with closing(setup.trace), tracking(trackers, status.report, lambda: loop.coordinator is not None):
            code = _run(loop, environment)
        if spill is not None:
            spill.remove()  # no other process begins after this end
        return code


def _set_up(environment: Environment, control: ControlSignals, status: StatusPublisher, roster: TrainerRoster) -> Setup:
    """Return what does not change, once the store lets it be read. Raises as `Setup.read` does.

    Before a job begins, its leader probes the store: StoreUnsuitableError ends the job then, and not once it has saves.
    """

    def follow() -> None:
        _follow(control)

    job, pinnings = environment.job, _pinnings(environment, control, status)
    store = open_store(job.snapshots.store, *environment.store_access)
    final: type[StoreError] | tuple[()] = ()
    if retry_store_errors(lambda: is_new_job(store, roster, job.job_uid), status, follow):
        final = StoreUnsuitableError
        retry_store_errors(lambda: store.probe(probe_prefix(job.job_uid)), status, follow, final=final)
    return retry_store_errors(
        lambda: Setup.read(environment, roster, store, pinnings, status.add_lasting_problem),
        status,
        follow,
        final=final,
    )


def _refuse(environment: Environment, error: StoreUnsuitableError) -> ExitCode:
    """End a job that has not begun: another attempt would end the same way."""
    _LOG.error("%s: %s", error.reason, error)
    return end_with(environment.termination_file, problem_of(error), ExitCode.STORE_UNSUITABLE)


def _timed(report: TrainerReport, control_block: TrainerControlBlock | None) -> TrainerReport:
    return report if control_block is None else replace(report, in_place_s=control_block.in_place_s)


def _who(roster: TrainerRoster) -> dict[str, Any]:
    """Return what a report says of a process that has begun to load."""
    return {
        "index": roster.index,
        "incarnation": roster.incarnation,
        "counters": roster.counters,
        "state": TrainerState.LOADING,
    }


def _pinnings(
    environment: Environment, control: ControlSignals, status: StatusPublisher
) -> tuple[FrozenInputs, FrozenInputs]:
    """Return those of what is trained, and of what the job is scored on."""

    def leads() -> bool:
        return control.current is not None and control.current.leader == control.current.index

    job = environment.job
    # Data that comes from code has no files, so none are added.
    uri = job.data.uri if job.data.entrypoint is None else None
    scored = None if job.evaluation is None else job.evaluation.uri
    return (
        FrozenInputs(job.job_uid, uri, leads, lambda: _follow(control), lambda count: status.update(new_files=count)),
        FrozenInputs(job.job_uid, scored, leads, lambda: _follow(control), evaluates=True),
    )


def _follow(control: ControlSignals) -> None:
    """Poll while nothing depends on the roster yet: only a stop ends the wait."""
    with suppress(RosterChanged):
        control.poll_interrupts()


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


#: Not while it waits for others: the change of the pod's readiness tells the operator to look at once.
_READY = frozenset(
    {
        TrainerState.TRAINING,
        TrainerState.MEETING,
        TrainerState.FINISHING,
        TrainerState.FINISHED,
    }
)


def _slowness(job: JobSpec) -> Problem | None:
    """What makes this process slower than it need be, which the log tells at once."""
    if not is_emulated(job.precision, job.device, read_cpuinfo()):
        return None
    problem = Problem(
        PRECISION_EMULATED,
        "spec.trainers.precision is bf16, and this processor has no instructions for it: training is far slower than "
        "in fp32.",
        "Train in fp32 in a new job, or on nodes with AVX512-BF16 or AMX.",
    )
    _LOG.warning("%s %s", problem.message, problem.remedy)
    return problem


def _spill(environment: Environment, file: ResumeFile | None) -> tuple[Spill | None, Problem | None]:
    """Return the room for pushes on disk, if the job has some; or why there is none: then less is kept."""
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
            "Free the disk of the node, or ask for less in a new job.",
        )
        _LOG.warning("%s %s", problem.message, problem.remedy)
        return None, problem


def _first_report(environment: Environment, life: int) -> TrainerReport:
    """Index -1 until a roster tells who this is."""
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
        lives=life,
    )


def _group_maker(setup: Setup, control: ControlSignals) -> MakeGroup:
    """Return how this process sees the group of a roster; with more than one trainer it listens from now on."""
    if setup.job.trainers == 1:
        return lambda _roster, _state: SoloGroup()
    me = Identity(setup.job.job_uid, ROLE_TRAINER, setup.rank, setup.incarnation, 0)
    listener = PeerListener(me, setup.key, setup.address, setup.port_base + CONTROL_PORT, setup.job.silence_s)
    liveness = PeerLiveness()
    listener.start()
    control.listener_alive = listener.alive

    def delays_s() -> Iterator[float]:
        return backoff(random.Random(), first_s=0.1, cap_s=1.0)

    def make(roster: TrainerRoster, _state: DenseState) -> Group:
        if roster.leader == setup.rank:
            return GroupLeader(listener, liveness, roster)
        return GroupFollower(listener, liveness, roster, delays_s())

    def make_shadow(roster: TrainerRoster, state: DenseState) -> Group:
        if roster.leader == setup.rank:
            return AsyncLeader(listener, liveness, roster, setup.job.dense_sync, state)
        return AsyncFollower(listener, liveness, roster, state, delays_s)

    return make if setup.job.lockstep else make_shadow
