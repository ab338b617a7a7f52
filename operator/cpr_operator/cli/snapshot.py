"""The state of a running job at one moment, as the progress display shows it. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.reports import TrainerReport
from cpr_operator.api.status import Status


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The job's status, and its leader's latest report, which is fresher where it can be asked. Times are seconds."""

    job: str
    elapsed_s: float
    status: Status
    leader: TrainerReport | None

    @property
    def samples(self) -> int:
        """Complete samples."""
        return self.leader.samples if self.leader else self.status.progress.samples

    @property
    def total(self) -> int:
        """Samples in all; 0 until the data is read."""
        return (self.leader.total_samples if self.leader else 0) or self.status.progress.total_samples

    @property
    def samples_per_s(self) -> float | None:
        """Training speed of the last seconds; None while nothing is trained."""
        if self.leader:
            return self.leader.samples_per_s
        return self.status.progress.samples_per_second if self.status.phase == "Running" else None

    @property
    def auc(self) -> float | None:
        """Area under the ROC curve so far."""
        return self.leader.auc if self.leader and self.leader.auc is not None else self.status.progress.auc


@dataclass(frozen=True, slots=True)
class Pace:
    """Speed over a whole run, from its first report to its last."""

    first_s: float
    first_samples: int
    last_s: float
    last_samples: int

    @classmethod
    def begin(cls, now: float, samples: int) -> Pace:
        """The first report."""
        return cls(now, samples, now, samples)

    def after(self, now: float, samples: int) -> Pace:
        """Add a report. One without new samples is ignored, so that it does not lower the speed."""
        if samples <= self.last_samples:
            return self
        return Pace(self.first_s, self.first_samples, now, samples)

    @property
    def samples_per_s(self) -> float | None:
        """The speed; None before anything was trained."""
        elapsed_s = self.last_s - self.first_s
        return (self.last_samples - self.first_samples) / elapsed_s if elapsed_s > 0 else None
