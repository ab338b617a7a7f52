"""What is frozen when a job starts or resumes: the settings of all its pods, whatever its spec says afterwards."""

from __future__ import annotations

import hashlib
import json

from cpr_contract.codec import pack, to_json
from cpr_operator.api.frozen_settings import replay_policy, worker_count
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Runtime
from cpr_operator.desired.description import next_version
from cpr_operator.reconcile.kueue import quota_of
from cpr_operator.reconcile.types import ReconcileInput


def runtime(observed: ReconcileInput, source: str | None) -> Runtime:
    """The settings of all pods until the job is suspended and resumed. `origin`: the anchor that it begins with."""
    spec, job = observed.job.spec, observed.job.id
    before, version = observed.before.runtime, next_version(observed.before, spec.image)
    replay = replay_policy(spec, None if before is None else before.replay)
    workers = worker_count(spec, before)
    described = to_job_spec(spec, job.uid, job.name, version, found=source, replay=replay, workers=workers)
    return Runtime(
        image=spec.image,
        contract_version=version,
        template_hash=template_hash(spec),
        key_digest=before.key_digest if before and not observed.key_lost else observed.key_digest,
        job_spec=pack(to_json(described)),
        replay=replay,
        quota=quota_of(observed.queue),
        restart_rules=observed.restart_rules,
        workers=workers,
    )


def template_hash(spec: CPRJobSpec) -> str:
    """A hash of the pod templates."""
    templates = json.dumps([spec.trainers.template, spec.shards.template], sort_keys=True)
    return hashlib.sha256(templates.encode()).hexdigest()[:16]
