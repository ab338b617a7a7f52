"""A warm standby: loads code and credentials and touches memory before a roster assigns it a shard's index."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from cpr_contract.reports import ShardReport, ShardState
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.memory import Prefaulter
from cpr_trainer.errors import TrainerError
from cpr_trainer.store import Store

_LOG = logging.getLogger(__name__)

#: Memory that is touched between two polls for a roster: the longest wait of a promotion.
_PORTION_BYTES = 16 << 20


class Standby:
    """Warms up a little at each `tick`; `report` shows when that is done.

    The code is loaded by now. One request warms the connection to the store: names, certificates and credentials. The
    first use of the rows' memory costs more than all else, so that is touched in portions.
    """

    def __init__(self, job: JobSpec, store: Store, memory: Prefaulter, report: ShardReport) -> None:
        """`report` is that of a process without a roster."""
        self._job = job
        self._store = store
        self._memory = memory
        self._report = report
        self._request = threading.Thread(target=self._warm_store, name="warm-store", daemon=True)
        self._request.start()

    @property
    def warm(self) -> bool:
        """True if nothing is left to do."""
        return self._memory.left_bytes == 0 and not self._request.is_alive()

    @property
    def report(self) -> ShardReport:
        """The report, with the state `Spare` once it is warm."""
        return replace(self._report, state=ShardState.SPARE if self.warm else ShardState.STARTING)

    def tick(self) -> bool:
        """Touch a portion of the memory; return whether some is left."""
        self._memory.touch(_PORTION_BYTES)
        return self._memory.left_bytes > 0

    def _warm_store(self) -> None:
        try:
            self._store.list(f"{self._job.job_uid}/spare/")
        except TrainerError as error:
            # A shard without a store reports that and waits; a spare only logs it.
            _LOG.warning("the store does not answer: %s", error)
