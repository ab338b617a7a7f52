"""Whether the installed CRD is this operator's own: under another one no new job starts.

An older schema would silently drop fields that a user wrote, a limit perhaps.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from cpr_operator.api.crd import HASH_ANNOTATION, schema_hash
from cpr_operator.cluster.protocol import ClusterError
from cpr_operator.reconcile import Hold

logger = logging.getLogger(__name__)

#: An answer counts for so many seconds. Then the CRD may be another one, or can be read again.
FRESH_S = 10.0


class InstalledCrd:
    """Reads the CRD's annotations when the last answer is too old by `clock` (seconds)."""

    def __init__(self, read: Callable[[], Awaitable[Mapping[str, str]]], clock: Callable[[], float]) -> None:
        self._read = read
        self._clock = clock
        self._asked: float | None = None
        self._hold: Hold | None = None
        self._asking = asyncio.Lock()

    async def hold(self) -> Hold | None:
        """Why no new job may start now; None if it may."""
        async with self._asking:  # whoever comes meanwhile waits for the same answer
            now = self._clock()
            if self._asked is None or now >= self._asked + FRESH_S:
                found = await self._ask()
                if found is not None and found != self._hold:
                    logger.warning("no new job starts: %s", found.message)
                self._asked, self._hold = now, found
            return self._hold

    async def _ask(self) -> Hold | None:
        try:
            annotations = await self._read()
        except ClusterError as error:
            remedy = "the operator retries; its ServiceAccount must be allowed to get the CRD"
            return Hold("Unknown", "Unknown", f"the CRD cannot be read: {error}; {remedy}")
        installed = annotations.get(HASH_ANNOTATION, "none")
        if installed == schema_hash():
            return None
        text = f"the installed CRD belongs to another release (schema {installed}, not {schema_hash()})"
        return Hold("True", "SchemaDiffers", f"{text}: upgrade the chart's CRD")
