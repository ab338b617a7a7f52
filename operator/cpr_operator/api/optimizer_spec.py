"""The optimizers in `spec.model`: of the dense network, of the embedding tables, and of one table."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from cpr_contract.model import DenseOptimizerKind, PhaseKind, RowOptimizer
from cpr_operator.api.base import SpecModel

LearningRate = Annotated[float, Field(gt=0, le=1000)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Epsilon = Annotated[float, Field(gt=0, le=1)]


class Phase(SpecModel):
    """Some steps of a schedule. A phase begins at the level at which the one before ended, the first one at 1."""

    kind: PhaseKind
    """The change of the level. Constant: not at all. Warmup: in a line from `start`, to 1 in its last step. Linear: in
    a line to `end`. Cosine: along half a cosine wave to `end`. Polynomial: to `end` like (1 - done)^power, where done
    is the portion of the phase that is over. Step: times `factor` after each `every` steps."""
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
    """The factor of a Step for the level."""


#: Bounded because the API server prices rules over it for each table.
Schedule = Annotated[tuple[Phase, ...], Field(max_length=8)]


class DenseOptimizer(SpecModel):
    """The optimizer of the dense network. Its arithmetic is that of torch.optim."""

    kind: DenseOptimizerKind = "SGD"
    """The algorithm. For each parameter, SGD keeps nothing, or one value with a momentum, Adagrad one, Adam and AdamW
    two."""
    learning_rate: LearningRate = 0.1
    """The step size."""
    schedule: Schedule = ()
    """The schedule of the learning rate, in phases: learningRate is multiplied by a level. If absent, the level is
    always 1."""
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
    """Weight decay: an L2 penalty in the gradient, but decoupled from it for AdamW. Default: 0.01 for
    AdamW, 0 for the others."""
    clip_norm: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """The maximum norm of the gradients over all parameters: larger ones are scaled down before each step. Default: no
    limit."""


class TableOptimizer(SpecModel):
    """The optimizer of one embedding table."""

    kind: RowOptimizer
    """The algorithm. For a row of D values, RowWiseAdagrad keeps one value of state, Adagrad D, Adam 2 D, SGD none. All
    tables of one dim reserve the space of the largest. Adam is lazy: it updates the moments of a row only when the row
    has a gradient."""
    learning_rate: LearningRate
    """The step size."""
    schedule: Schedule = ()
    """The schedule of the learning rate, in phases: learningRate is multiplied by a level. If absent, the level is
    always 1."""
    epsilon: Epsilon | None = None
    """Added to the square roots by which RowWiseAdagrad, Adagrad and Adam divide. Default: 1e-8."""
    beta1: Decay | None = None
    """Adam's decay rate of the mean of gradients. Default: 0.9."""
    beta2: Decay | None = None
    """Adam's decay rate of the mean of squared gradients. Default: 0.999."""


class SparseOptimizer(TableOptimizer):
    """The optimizer of the embedding tables that have no optimizer of their own."""

    kind: RowOptimizer = "RowWiseAdagrad"
    """The algorithm. For a row of D values, RowWiseAdagrad keeps one value of state, Adagrad D, Adam 2 D, SGD none.
    Adam is lazy: it updates the moments of a row only when the row has a gradient."""
    learning_rate: LearningRate = 0.1
    """The step size."""
