"""What `cprjob evaluate` asks of the trainer image, and what it learns."""

from __future__ import annotations

from dataclasses import dataclass

from cpr_contract.reports import Groups, GroupScores


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The key of the anchor whose model is to be scored on the rows that the job holds out."""

    anchor: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model's scores on held-out `samples`.

    `auc`, `log_loss` (nats): of the first label; None if it is the same in all samples, both if there is no label.
    `metrics`: figures by name, as in a trainer's report. `normalised_entropy`, `calibration`: of the first label, as in
    `cpr_contract.reports.HeldOutScores`, as `gauc`, `groups` and `rest`.
    """

    step: int
    samples: int
    auc: float | None
    log_loss: float | None
    metrics: tuple[tuple[str, float], ...] = ()
    normalised_entropy: float | None = None
    calibration: float | None = None
    gauc: float | None = None
    groups: Groups = ()
    rest: GroupScores | None = None
