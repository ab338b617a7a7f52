"""A member of a job, with what the bench counts; with ECRec's way of keeping parity if the environment says so."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from cpr_contract import env
from cpr_contract.codec import pack, to_json
from cpr_trainer.process import main as run_member
from cpr_trainer.runtime import read_job
from cprjob_bench.documents.redundancy import COUNTS_FILE, EAGER


def run(role: str, environ: Mapping[str, str]) -> int:
    """Be a trainer or a shard to its end; return the exit code."""
    from cprjob_bench.roles.redundancy.counting import count  # noqa: PLC0415 -- numpy, which only members need

    job = read_job(environ)
    if environ.get(EAGER):
        # Trainers of ECRec keep no pushes: nothing is replayed.
        job = replace(job, replay_bytes=0)
        others = {name: value for name, value in environ.items() if name != env.SPEC_FILE}
        environ = {**others, env.SPEC: pack(to_json(job))}
        _be_eager(role)
    count(Path(environ[COUNTS_FILE]), role, job.replay_bytes)
    return run_member([role], environ)


def _be_eager(role: str) -> None:
    """Let the code that this process loads next find the parts of ECRec's way in the place of the product's."""
    if role == env.ROLE_TRAINER:
        from cpr_trainer.exchange import loop  # noqa: PLC0415
        from cprjob_bench.roles.redundancy.eager_trainer import EagerLink  # noqa: PLC0415

        loop.Link = EagerLink  # type: ignore[attr-defined]
        return
    from cpr_trainer.shard import main, server  # noqa: PLC0415
    from cprjob_bench.roles.redundancy.eager_shard import EagerConnection, EagerRedundancy, EagerServer  # noqa: PLC0415

    main.Redundancy = EagerRedundancy  # type: ignore[assignment,attr-defined]
    main.Server = EagerServer  # type: ignore[assignment,attr-defined]
    server.Connection = EagerConnection  # type: ignore[misc]
