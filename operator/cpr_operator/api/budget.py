"""`spec.accuracyBudget`: how much accuracy failures may cost, and the portion of lost samples it amounts to."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cpr_operator.api.model import SpecModel
from cpr_operator.api.rules.budget import GUESSED_SENSITIVITY


class AucDrop(SpecModel):
    """A budget as a drop of AUC, with the sensitivity that converts it to lost samples."""

    limit: Annotated[float, Field(ge=0, le=0.5)]
    """How far failures may lower the job's AUC, for example 0.0005. 0 allows no lost samples."""
    sensitivity: Annotated[float, Field(gt=0, le=1000)] | None = None
    """AUC lost per unit of the portion of lost samples: losing 1 % of all samples costs a hundredth of this value.
    `cprjob calibrate` measures it. If absent, the plan uses a cautious guess and says so."""

    @property
    def portion(self) -> float:
        """PLS = limit / sensitivity: AUC falls about linearly with PLS (Maeng et al., MLSys 2021)."""
        return self.limit / (self.sensitivity or GUESSED_SENSITIVITY)


class AccuracyBudget(SpecModel):
    """How much accuracy failures may cost, stated in one of two ways."""

    type: Literal["PortionOfLostSamples", "AUCDrop"] = "PortionOfLostSamples"
    """Which of the fields below states the budget: portionOfLostSamples or aucDrop."""
    portion_of_lost_samples: Annotated[float, Field(ge=0, lt=1)] | None = None
    """The portion of all samples, averaged over the shards, whose updates may be lost. 0 allows none. A recovery that
    would exceed the budget rolls the whole job back instead."""
    auc_drop: AucDrop | None = None
    """The AUC that may be lost, and the AUC that lost samples cost."""

    @property
    def portion(self) -> float:
        """The budget as a portion of lost samples, however it is stated. Ledger and plan use it."""
        if self.auc_drop is not None:
            return self.auc_drop.portion
        return self.portion_of_lost_samples or 0.0

    @property
    def basis(self) -> str:
        """A sentence on how `portion` was computed; empty if the user stated it."""
        drop = self.auc_drop
        if drop is None:
            return ""
        allowed = f"An AUC drop of {drop.limit:g} allows a portion of lost samples of {drop.portion:.3g}"
        if drop.sensitivity is not None:
            return f"{allowed}, by the stated sensitivity of {drop.sensitivity:g}."
        guess = f"a sensitivity of {GUESSED_SENSITIVITY:g}, which is only a guess"
        return f"{allowed}, by {guess}: measure it with cprjob calibrate."
