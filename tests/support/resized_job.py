"""Jobs of real processes that stop at one anchor, and continue from it with other members."""

from __future__ import annotations

from pathlib import Path

from cpr_contract.codec import from_json
from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import ExitCode, SaveRef
from cpr_contract.roster import AnchorRef, Counters
from cpr_contract.spec import JobSpec
from cpr_trainer.checkpoint.format.records import read_anchor
from cpr_trainer.store import open_store
from support.local_job import LocalJob


def resized(job: JobSpec, folder: Path, generation: int, anchor: AnchorRef | None) -> LocalJob:
    """A job that begins this generation with the anchor."""
    folder.mkdir()
    running = LocalJob(job, folder)
    running.counters, running.anchor = Counters(roster=0, group=generation, generation=generation), anchor
    return running


def stop(running: LocalJob) -> AnchorRef:
    """Stop all members, trainers first; return their common anchor."""
    for role, members in ((ROLE_TRAINER, running.trainers), (ROLE_SHARD, running.shards)):
        running.stopped |= {role}
        running.publish()
        assert [running.wait_exit(member) for member in members] == [ExitCode.FLUSHED] * len(members)
    anchor = from_json(AnchorRef, running.trainers[running.leader].termination_message)
    saves = [from_json(SaveRef, shard.termination_message) for shard in running.shards]
    assert [save.samples for save in saves] == [anchor.samples] * len(saves)
    manifest = read_anchor(open_store(running.job.snapshots.store, None, None), anchor)
    assert [ref.key for ref in manifest.shards] == [save.key for save in saves], "nothing was written after it"
    return anchor
