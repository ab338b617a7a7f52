"""A job's life: which phase follows which, how it starts, is suspended, and ends.

Pending -> Starting -> Running <-> Recovering | RollingBack -> Finishing -> Succeeded
Pending may go to Suspended, any later phase to Suspending -> Suspended -> Starting; all but those two to Failed
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from cpr_contract.codec import to_json
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Anchor, Counters, Fork, Phase, Runtime, Shard, Status, Trainer
from cpr_operator.cluster.protocol import Event
from cpr_operator.desired.versions import next_version
from cpr_operator.reconcile.edit import account_of, owed, with_account
from cpr_operator.reconcile.figures import with_total
from cpr_operator.reconcile.members import successor
from cpr_operator.reconcile.observe import is_settled
from cpr_operator.reconcile.planning import planned
from cpr_operator.reconcile.world import EventReason, Step, World

_ALIVE: frozenset[Phase] = frozenset({"Starting", "Running", "Recovering", "RollingBack", "Finishing"})

#: Which phases may follow which within one pass; a phase may also stay. Nothing follows the last two.
TRANSITIONS: Mapping[Phase, frozenset[Phase]] = {
    "Pending": frozenset({"Starting", "Suspended", "Failed"}),
    **{phase: (_ALIVE - {"Starting", phase}) | {"Suspending", "Succeeded", "Failed"} for phase in _ALIVE},
    "Suspending": frozenset({"Suspended", "Succeeded"}),
    "Suspended": frozenset({"Starting"}),
    "Succeeded": frozenset(),
    "Failed": frozenset(),
}


def phase_of(world: World, status: Status) -> Phase:
    """The phase of a job that has pods and goes on."""
    before = world.job.status.phase
    starting = before in {"Pending", "Suspended", "Starting"}
    if starting and not all(is_settled(m) for m in status.members):
        return "Starting"
    if status.recovery is not None:
        return "RollingBack" if status.recovery.kind == "RollBack" else "Recovering"
    leader = status.trainers[status.leader or 0]
    return "Finishing" if leader.state in {"Finishing", "Finished"} else "Running"


def start(world: World) -> Step:
    """The first pods of a new job are wanted: from here on its image, contract and templates are frozen."""
    spec, job, status = world.job.spec, world.job.id, world.job.status
    shards = (Shard(index=i, lost_row_updates=0) for i in range(spec.shards.replicas))
    status = status.evolve(
        start_time=world.now,
        runtime=runtime(world),
        counters=Counters(generation=1, group=1, roster=0),
        forks=(Fork(generation=1),),
        leader=0,
        shards=tuple(successor(job, shard, world.now) for shard in shards),
        trainers=tuple(successor(job, Trainer(index=i), world.now) for i in range(spec.trainers.replicas)),
    )
    status = with_total(world, status, spec.data.samples or 0)
    status = planned(spec, with_account(status, account_of(status)), anew=True)
    message = f"{len(status.trainers)} trainers and {len(status.shards)} shards"
    return Step(status).to(status, Event("Normal", EventReason.STARTED, message, "started"))


def runtime(world: World) -> Runtime:
    """What all pods are made from until the job is suspended and resumed."""
    spec, job = world.job.spec, world.job.id
    before, version = world.job.status.runtime, next_version(world.job.status, spec.image)
    return Runtime(
        image=spec.image,
        contract_version=version,
        template_hash=template_hash(spec),
        key_digest=before.key_digest if before and not world.key_lost else world.key_digest,
        job_spec=to_json(to_job_spec(spec, job.uid, job.name, version)),
    )


def template_hash(spec: CPRJobSpec) -> str:
    """What tells the pod templates from others."""
    templates = json.dumps([spec.trainers.template, spec.shards.template], sort_keys=True)
    return hashlib.sha256(templates.encode()).hexdigest()[:16]


def succeed(world: World, step: Step, result: Anchor) -> Step:
    """The final anchor is committed: the job has a model. What nobody settled any more counts as lost, at the worst."""
    status = step.status
    account = account_of(status).reserve(owed(status, result.samples))
    status = with_account(status, account.charge_reserved())
    progress = status.progress.evolve(step=result.step, samples=result.samples, percent=100, eta_seconds=0.0)
    status = status.evolve(
        phase="Succeeded",
        completion_time=world.now,
        result=result,
        progress=progress,
        shards=tuple(s if s.lost_at is None else s.evolve(lost_row_updates=None, allowance=0) for s in status.shards),
        recovery=None,
    )
    return step.to(status, Event("Normal", EventReason.SUCCEEDED, f"the model is {result.key}", "succeeded"))


def fail(world: World, step: Step, cause: str, reason: str) -> Step:
    """The job ends without a model; its saves stay in the store."""
    status = step.status.evolve(phase="Failed", completion_time=world.now, recovery=None)
    return step.to(status, Event("Warning", EventReason.FAILED, f"{cause}: {reason}", "failed"))
