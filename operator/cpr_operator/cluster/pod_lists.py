"""A cache of each job's list of pods, valid until a watch sees one of them change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cpr_operator.cluster.views import PodView

#: A watch may lose an event, so a list serves for so many seconds at most. Each job's pods are some 50 KB of JSON.
KEPT_S = 300.0


@dataclass(slots=True)
class _Kept:
    changes: int = 0
    pods: tuple[PodView, ...] = ()
    until: float = float("-inf")


class PodLists:
    """Lists by the job's namespace and name. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._jobs: dict[tuple[str, str], _Kept] = {}

    def changed(self, namespace: str, name: str) -> None:
        """Invalidate the job's list, because a watch saw one of its pods."""
        kept = self._jobs.setdefault((namespace, name), _Kept())
        kept.changes += 1
        kept.pods, kept.until = (), float("-inf")

    def forget(self, namespace: str, name: str) -> None:
        """Forget the list of a job that is gone."""
        self._jobs.pop((namespace, name), None)

    def changes(self, namespace: str, name: str) -> int:
        """The number of changes seen so far. Read it before requesting a list, and pass it to `keep`."""
        kept = self._jobs.get((namespace, name))
        return kept.changes if kept else 0

    def keep(self, namespace: str, name: str, changes: int, pods: tuple[PodView, ...]) -> None:
        """Keep a list, unless a change was seen during its request, which the list may lack."""
        kept = self._jobs.setdefault((namespace, name), _Kept())
        if kept.changes == changes:
            kept.pods, kept.until = pods, self._clock() + KEPT_S

    def find(self, namespace: str, name: str) -> tuple[PodView, ...] | None:
        """Return the list if it is still valid, else None."""
        kept = self._jobs.get((namespace, name))
        return kept.pods if kept and self._clock() < kept.until else None
