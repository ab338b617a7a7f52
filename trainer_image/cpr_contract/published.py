"""The publisher's report: the newest model in the chain of a job."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.reports import Problem


@dataclass(frozen=True, slots=True)
class Published:
    """The newest entry of a job's chain of models: its sequence number, and its anchor's key, step and samples.

    `time_s` is the time of its publication, in seconds since the epoch.
    """

    sequence: int
    anchor: str
    step: int
    samples: int
    time_s: float


@dataclass(frozen=True, slots=True)
class PublisherReport:
    """A publisher's answer on `/status`. `published` is None until the chain has an entry of this job."""

    contract: int
    job_uid: str
    published: Published | None
    problem: Problem | None = None
