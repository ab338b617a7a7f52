"""One of several operators. It stands by until it holds the lease, leads, and stands by again after that."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from cpr_operator.configuration import Configuration
from cpr_operator.election import Elector, Term
from cpr_operator.leader import Leader
from cpr_operator.metrics import Metrics

logger = logging.getLogger(__name__)

#: The work of a term ends within so many seconds; the pod's grace is longer.
STOP_S = 10.0


class StuckError(RuntimeError):
    """A term is over and its work does not end: only the end of the process ends it."""


class Candidate:
    """Stands for election and leads."""

    def __init__(self, elector: Elector, configuration: Configuration, metrics: Metrics) -> None:
        self._elector = elector
        self._configuration = configuration
        self._metrics = metrics
        self._leader: Leader | None = None

    @property
    def role(self) -> str:
        """See `Health`.

        A standby is ready once it has read the lease; the leader, once jobs and pods are listed.
        """
        if self._leader is None:
            return "standby" if self._elector.answered else ""
        return "leader" if self._leader.ready else ""

    async def turns(self) -> None:
        """See `Health`."""
        if self._leader is not None:
            await self._leader.turns()

    async def run(self) -> None:
        """Stand by and lead in turn, until cancelled.

        Raises StuckError, and whatever ended a leader's work by itself.
        """
        while True:
            await self._lead(await self._elector.acquire())

    async def _lead(self, term: Term) -> None:
        leader = self._leader = Leader(self._configuration, self._metrics, term.check)
        holding = asyncio.create_task(self._elector.hold(term))
        work = leader.start()
        self._metrics.leading.set(1)
        try:
            both: tuple[asyncio.Future[Any], ...] = (holding, work)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if holding.done():
                logger.warning("the lease is lost: %s", holding.result())
        finally:
            leader.stop()
            await asyncio.wait({work}, timeout=STOP_S)
            holding.cancel()
            await self._elector.release(term)
            self._leader = None
            self._metrics.leading.set(0)
            for namespace, name in self._metrics.jobs():
                self._metrics.forget(namespace, name)
        if not work.done():
            raise StuckError(f"the work of the last term did not end within {STOP_S:g} s")
        work.result()
