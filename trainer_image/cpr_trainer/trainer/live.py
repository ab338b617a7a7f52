"""The part of a report that is looked up when somebody asks."""

from __future__ import annotations

from dataclasses import replace

from cpr_contract.env import ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import TrainerReport, TrainerState
from cpr_contract.spec import JobSpec
from cpr_trainer.exchange import Exchange
from cpr_trainer.trainer.allreduce.group import Group
from cpr_trainer.trainer.save_coordinator import SaveCoordinator

_WAITING = frozenset({TrainerState.JOINING, TrainerState.PAUSED, TrainerState.MEETING, TrainerState.FINISHING})


def look(
    report: TrainerReport, exchange: Exchange, group: Group | None, coordinator: SaveCoordinator | None, job: JobSpec
) -> TrainerReport:
    """Return the report with names of members that are waited for or silent, and the leader's saves.

    Without lockstep trainers that are missing are named while others train, too.
    """

    def unresponsive(for_s: float) -> tuple[str, ...]:
        return _names(ROLE_SHARD, exchange.unresponsive(for_s)) + _names(
            ROLE_TRAINER, group.unresponsive(for_s) if group else ()
        )

    report = replace(report, silent=unresponsive(job.silence_s), overdue=unresponsive(job.overdue_s))
    if report.state in _WAITING or not job.lockstep:
        absent = group.missing() if group else ()
        away = exchange.unavailable() if report.state in _WAITING else ()
        report = replace(report, waiting_for=_names(ROLE_SHARD, away) + _names(ROLE_TRAINER, absent))
    # First what is forgotten: saves that are told after it are no older than those it rests on.
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
        early_save_s=coordinator.early_s,
    )


def _names(role: str, indices: tuple[int, ...]) -> tuple[str, ...]:
    return tuple(f"{role}/{index}" for index in indices)
