"""The end of training: what the termination message of the leader states, and its final anchor."""

from __future__ import annotations

import json
from collections.abc import Mapping

from cpr_contract.codec import ContractError, from_dict, from_json
from cpr_contract.reports import Result
from cpr_contract.roster import AnchorRef
from cpr_operator.api.spec import CPRJobSpec
from cpr_operator.api.status import Anchor, BestModel, HeldOut, Status
from cpr_operator.reconcile.apply_reports import restorable, with_total
from cpr_operator.reconcile.types import Done, Fact
from cpr_operator.recovery.account import account_of, with_account

#: How a `Result` begins: its keys are sorted.
_ANCHOR_FIRST = '{"anchor":'


def result_of(status: Status, facts: Mapping[str, Fact]) -> Anchor | None:
    """The final anchor: from the leader's termination message, or as the status has it from an earlier report.

    One of an earlier generation is none, unless this one began with it: trainers that had not heard of a rollback
    trained on to their end. A leader exits normally only after its final anchor is committed, so if its message cannot
    be read, a known anchor of the last sample is the final one.
    """
    end = facts.get(f"trainer/{status.leader or 0}")
    if not isinstance(end, Done):
        return status.result
    told = final_anchor(end.message)
    if told is not None:
        return next(iter(restorable(status, (Anchor.of(told),))), None)
    total, newest = status.ledger.total_samples, status.anchors[-1:]
    return status.result or next((anchor for anchor in newest if anchor.samples >= total > 0), None)


def final_anchor(message: str) -> AnchorRef | None:
    """The anchor in the termination message of a leader that has trained everything; None if it cannot be read.

    A kubelet cuts long messages, and the anchor is the first field of a result.
    """
    try:
        return from_json(Result, message).anchor
    except ContractError:
        pass
    if not message.startswith(_ANCHOR_FIRST):
        return None
    try:
        value, _ = json.JSONDecoder().raw_decode(message, len(_ANCHOR_FIRST))
        return from_dict(AnchorRef, value)
    except ValueError:  # ContractError is one
        return None


def with_termination_message(spec: CPRJobSpec, status: Status, facts: Mapping[str, Fact]) -> Status:
    """The status with what the leader's `Result` states: no report of these may have been read."""
    word = _termination_message(status, facts)
    if word is None:
        return status
    # Images of 0.1.0 do not state the total, and end with the last sample.
    total = word.total_samples or status.ledger.total_samples or word.anchor.samples
    status = with_total(spec, status, total)
    status = with_account(status, account_of(status).settle_dense(word.lost))
    progress = status.progress.evolve(loss=word.loss, auc=word.auc, logloss=word.logloss, metrics=dict(word.metrics))
    if word.evaluation is not None:
        progress = progress.evolve(held_out=_with_groups(HeldOut.of(word.evaluation), progress.held_out))
    best = BestModel.of(word.best) if word.best is not None else status.best
    return status.evolve(progress=progress, best=best)


def _with_groups(told: HeldOut, known: HeldOut | None) -> HeldOut:
    """The last word has no room for the groups: a report told them."""
    if known is None or known.step != told.step:
        return told
    return told.evolve(groups=known.groups, rest=known.rest)


def _termination_message(status: Status, facts: Mapping[str, Fact]) -> Result | None:
    """What the leader left behind when it had trained everything."""
    leader = facts.get(f"trainer/{status.leader or 0}")
    if not isinstance(leader, Done) or not leader.message:
        return None
    try:
        return from_json(Result, leader.message)
    except ContractError:
        return None
