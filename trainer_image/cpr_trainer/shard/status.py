"""What a shard shows on its HTTP pages: the main loop publishes, the pages' threads only look."""

from __future__ import annotations

from time import monotonic

from cpr_contract import CONTRACT_VERSION
from cpr_contract.reports import ShardReport, ShardState
from cpr_contract.roster import Counters
from cpr_contract.spec import JobSpec

_STALLED_S = 30.0  # far more than any turn takes


class Board:
    """The report as last published, and when that was. Index -1 until a roster tells who this is."""

    def __init__(self, job: JobSpec) -> None:
        self._turned = monotonic()
        self.report = ShardReport(
            contract=CONTRACT_VERSION,
            job_uid=job.job_uid,
            index=-1,
            incarnation=0,
            counters=Counters(roster=0, group=0, generation=0),
            state=ShardState.STARTING,
            applied=(),
            newest_save=None,
            restored_samples=None,
            resumed_samples=None,
            lost=(),
            load_s=None,
            silent=(),
            problem=None,
        )

    def show(self, report: ShardReport) -> None:
        """Publish a report, and that the main loop turns."""
        self.report, self._turned = report, monotonic()

    def healthy(self) -> bool:
        """Whether the main loop turned lately."""
        return monotonic() - self._turned < _STALLED_S

    def ready(self) -> bool:
        """Whether lookups and pushes are served, or a spare could do so at once."""
        return self.report.state in {ShardState.READY, ShardState.SPARE}
