"""What the restart limit counts: incidents. Members of one role that fail alike within seconds fail for one cause."""

from __future__ import annotations

from collections.abc import Mapping

from cpr_operator.api.status import Member, Status
from cpr_operator.failures import Failure
from cpr_operator.reconcile.observe import Fact, Lost

#: Failures of one incident are seen within so many seconds of its first.
INCIDENT_S = 10.0


def begins_incident(status: Status, member: Member, failure: Failure, now: float) -> bool:
    """Whether a failure counts: its kind does, and it does not belong to an incident that is counted already.

    A member belongs to an incident once: one that fails again, however soon, begins another.
    """
    if not failure.counts_as_restart:
        return False
    alike = [f for f in status.failures if (f.role, f.kind) == (member.role, failure.kind)]
    if not alike:
        return True
    # Of a large incident the first record may be gone: only the last failures are kept.
    first = next((n for n, record in reversed([*enumerate(alike)]) if record.counted), 0)
    return alike[first].time < now - INCIDENT_S or member.index in {record.index for record in alike[first:]}


def new_incidents(status: Status, facts: Mapping[str, Fact], now: float) -> int:
    """How many incidents the members that are lost in this pass add to those counted."""
    lost = ((m, facts.get(m.name)) for m in status.members)
    return len(
        {
            (member.role, fact.failure.kind)
            for member, fact in lost
            if isinstance(fact, Lost) and begins_incident(status, member, fact.failure, now)
        }
    )
