"""What `cprjob evaluate` asks of the trainer image, and what it learns."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """The key of the anchor whose model is to be scored on the rows that the job holds out."""

    anchor: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """A model's score on held-out `samples`. `log_loss` is in nats; `auc` is None if all have the same label."""

    step: int
    samples: int
    auc: float | None
    log_loss: float
