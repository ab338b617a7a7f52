"""The optimizers in `spec.model`: of the dense network, of the embedding tables, and of one table."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationInfo, field_validator

from cpr_operator.api.model import SpecModel
from cpr_operator.api.rules import optimizers as rules

LearningRate = Annotated[float, Field(gt=0, le=1000)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(gt=0, le=1)]
SparseKind = Literal["SGD", "RowWiseAdagrad", "Adagrad", "Adam"]


class Phase(SpecModel):
    """Some steps of a schedule. A phase begins at the level at which the one before ended, the first one at 1."""

    kind: Literal["Constant", "Warmup", "Linear", "Cosine", "Polynomial", "Step"]
    """How the level changes. Constant: not at all. Warmup: in a line from `start`, to 1 in its last step. Linear: in a
    line to `end`. Cosine: along half a cosine wave to `end`. Polynomial: to `end` like (1 - done)^power, where done is
    the portion of the phase that is over. Step: times `factor` after each `every` steps."""
    steps: Annotated[int, Field(ge=1, le=2**53 - 1)]
    """Number of steps of the job. After the last phase, the level stays as it is."""
    start: Annotated[float, Field(ge=0, lt=1)] | None = None
    """The level before a Warmup. Default: 0."""
    end: Annotated[float, Field(ge=0, le=1000)] | None = None
    """The level to which Linear, Cosine and Polynomial lead. Default: 0."""
    power: Annotated[float, Field(gt=0, le=100)] | None = None
    """The power of a Polynomial."""
    every: Annotated[int, Field(ge=1, le=2**53 - 1)] | None = None
    """The number of steps between two changes of a Step."""
    factor: Annotated[float, Field(gt=0, le=1000)] | None = None
    """What a Step multiplies the level by."""


#: Bounded because the API server prices rules over it for each table.
Schedule = Annotated[tuple[Phase, ...], Field(max_length=8)]


def _checked(where: str, schedule: Schedule) -> Schedule:
    warmup, decay, polynomial, step = rules.SCHEDULE[where]
    for phase in schedule:
        warmup.require(phase.kind == "Warmup" or phase.start is None)
        decay.require(phase.kind in {"Linear", "Cosine", "Polynomial"} or phase.end is None)
        polynomial.require((phase.kind == "Polynomial") == (phase.power is not None))
        step.require(all((phase.kind == "Step") == (value is not None) for value in (phase.every, phase.factor)))
    return schedule


class _Optimizer(SpecModel):
    """The rules that all optimizers share. `where` is the path of the field, such as `spec.model.denseOptimizer`."""

    where: ClassVar[str]

    @field_validator("schedule", check_fields=False)
    @classmethod
    def _phases_have_what_is_theirs(cls, value: Schedule) -> Schedule:
        return _checked(cls.where, value)

    @field_validator("epsilon", check_fields=False)
    @classmethod
    def _sgd_divides_by_nothing(cls, value: float | None, info: ValidationInfo) -> float | None:
        rules.EPSILON[cls.where].require(value is None or info.data.get("kind") != "SGD")
        return value


class DenseOptimizer(_Optimizer):
    """The optimizer of the dense network. Its arithmetic is that of torch.optim."""

    where: ClassVar[str] = rules.DENSE_OPTIMIZER

    kind: Literal["SGD", "Adagrad", "Adam", "AdamW"] = "SGD"
    """The algorithm. For each parameter, SGD keeps nothing, or one value with a momentum, Adagrad one, Adam and AdamW
    two."""
    learning_rate: LearningRate = 0.1
    """The step size."""
    schedule: Schedule = ()
    """How the learning rate changes from step to step, in phases: learningRate is multiplied by a level. If absent, the
    level is always 1."""
    momentum: Annotated[float, Field(gt=0, lt=1)] | None = None
    """SGD's momentum. Default: none."""
    nesterov: bool = False
    """Whether SGD's momentum is Nesterov's."""
    epsilon: Epsilon | None = None
    """Added to the square roots by which Adagrad, Adam and AdamW divide. Default: 1e-10 for Adagrad, 1e-8 for Adam and
    AdamW."""
    beta1: Decay | None = None
    """The decay rate of the mean of gradients of Adam and AdamW. Default: 0.9."""
    beta2: Decay | None = None
    """The decay rate of the mean of squared gradients of Adam and AdamW. Default: 0.999."""
    weight_decay: Annotated[float, Field(ge=0, le=1)] | None = None
    """How much parameters shrink: an L2 penalty in the gradient, but decoupled from it for AdamW. Default: 0.01 for
    AdamW, 0 for the others."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """Gradients whose norm over all parameters is larger are scaled down to this norm before each step. Default: no
    limit."""

    @field_validator("momentum")
    @classmethod
    def _only_sgd_has_momentum(cls, value: float | None, info: ValidationInfo) -> float | None:
        rules.MOMENTUM.require(value is None or info.data.get("kind", "SGD") == "SGD")
        return value

    @field_validator("nesterov")
    @classmethod
    def _nesterov_needs_momentum(cls, value: bool, info: ValidationInfo) -> bool:  # noqa: FBT001 -- pydantic calls it
        rules.NESTEROV.require(not value or info.data.get("momentum", 0.0) is not None)
        return value

    @field_validator("beta1", "beta2")
    @classmethod
    def _only_adam_has_moments(cls, value: float | None, info: ValidationInfo) -> float | None:
        kind = info.data.get("kind", "Adam")
        rules.BETAS[f"{rules.DENSE_OPTIMIZER}.{info.field_name}"].require(value is None or kind in rules.ADAMS)
        return value


class TableOptimizer(_Optimizer):
    """The optimizer of one embedding table."""

    where: ClassVar[str] = rules.TABLE_OPTIMIZER

    kind: SparseKind
    """The algorithm. For a row of D values, RowWiseAdagrad keeps one value of state, Adagrad D, Adam 2 D, SGD none. All
    tables of one dim reserve the space of the largest. Adam is lazy: it updates the moments of a row only when the row
    has a gradient."""
    learning_rate: LearningRate
    """The step size."""
    schedule: Schedule = ()
    """How the learning rate changes from step to step, in phases: learningRate is multiplied by a level. If absent, the
    level is always 1."""
    epsilon: Epsilon | None = None
    """Added to the square roots by which RowWiseAdagrad, Adagrad and Adam divide. Default: 1e-8."""
    beta1: Decay | None = None
    """Adam's decay rate of the mean of gradients. Default: 0.9."""
    beta2: Decay | None = None
    """Adam's decay rate of the mean of squared gradients. Default: 0.999."""

    @field_validator("beta1", "beta2")
    @classmethod
    def _only_adam_has_moments(cls, value: float | None, info: ValidationInfo) -> float | None:
        if "kind" in info.data:
            rules.BETAS[f"{cls.where}.{info.field_name}"].require(value is None or info.data["kind"] == "Adam")
        return value


class SparseOptimizer(TableOptimizer):
    """The optimizer of the embedding tables that have no optimizer of their own."""

    where: ClassVar[str] = rules.SPARSE_OPTIMIZER

    kind: SparseKind = "RowWiseAdagrad"
    """The algorithm. For a row of D values, RowWiseAdagrad keeps one value of state, Adagrad D, Adam 2 D, SGD none.
    Adam is lazy: it updates the moments of a row only when the row has a gradient."""
    learning_rate: LearningRate = 0.1
    """The step size."""
