"""A shard that is nobody yet: all that can be done before a roster says which one, done beforehand."""

from __future__ import annotations

import logging
import threading
from dataclasses import replace

from cpr_contract.reports import ShardReport, ShardState
from cpr_contract.spec import JobSpec
from cpr_trainer.embedding.memory import Toucher
from cpr_trainer.errors import TrainerError
from cpr_trainer.store import Store

_LOG = logging.getLogger(__name__)

#: Memory that is touched between two looks for a roster: a promotion waits for no more.
_PORTION_BYTES = 16 << 20


class Spare:
    """Warms up, a little at each `turn`. `report` says when that is done.

    The code is loaded by now. What is left are the connection to the store, so that names, certificates and credentials
    are known, and the memory of the rows, which costs more at its first use than all else.
    """

    def __init__(self, job: JobSpec, store: Store, memory: Toucher, report: ShardReport) -> None:
        """`report` is that of a process without a roster."""
        self._job = job
        self._store = store
        self._memory = memory
        self._report = report
        self._asking = threading.Thread(target=self._ask, name="warm-store", daemon=True)
        self._asking.start()

    @property
    def warm(self) -> bool:
        """Whether there is nothing left to do."""
        return self._memory.left_bytes == 0 and not self._asking.is_alive()

    @property
    def report(self) -> ShardReport:
        """How it is."""
        return replace(self._report, state=ShardState.SPARE if self.warm else ShardState.STARTING)

    def turn(self) -> bool:
        """Do a little; whether there is memory left to touch."""
        self._memory.touch(_PORTION_BYTES)
        return self._memory.left_bytes > 0

    def _ask(self) -> None:
        try:
            self._store.list(f"{self._job.job_uid}/spare/")
        except TrainerError as error:
            # Not the spare's concern: a shard that cannot reach the store says so, and waits.
            _LOG.warning("the store cannot be asked: %s", error)
