"""Rules of the optimizers and their schedules."""

from __future__ import annotations

from itertools import chain

from cpr_operator.api.rules.rule import Rule

SPARSE_OPTIMIZER, TABLE_OPTIMIZER = "spec.model.sparseOptimizer", "spec.model.tables.optimizer"
DENSE_OPTIMIZER = "spec.model.denseOptimizer"
ADAMS = ("Adam", "AdamW")
MOMENTUM = Rule(
    DENSE_OPTIMIZER,
    f"{DENSE_OPTIMIZER}.momentum",
    "only SGD has a momentum",
    "remove it, or set kind to SGD",
    "self.kind == 'SGD' || !has(self.momentum)",
)
NESTEROV = Rule(
    DENSE_OPTIMIZER,
    f"{DENSE_OPTIMIZER}.nesterov",
    "needs a momentum",
    "state momentum, or remove nesterov",
    "!self.nesterov || has(self.momentum)",
)
#: By the path of the optimizer.
EPSILON = {
    where: Rule(
        where,
        f"{where}.epsilon",
        "SGD has no epsilon",
        "remove it, or choose another kind",
        "self.kind != 'SGD' || !has(self.epsilon)",
    )
    for where in (SPARSE_OPTIMIZER, TABLE_OPTIMIZER, DENSE_OPTIMIZER)
}
#: By the field.
BETAS = {
    f"{where}.{beta}": Rule(
        where,
        f"{where}.{beta}",
        f"only {' and '.join(kinds)} {'has' if len(kinds) == 1 else 'have'} {beta}",
        "remove it, or set kind to Adam",
        f"self.kind in {list(kinds)} || !has(self.{beta})",
    )
    for where, kinds in ((SPARSE_OPTIMIZER, ("Adam",)), (TABLE_OPTIMIZER, ("Adam",)), (DENSE_OPTIMIZER, ADAMS))
    for beta in ("beta1", "beta2")
}
_DECAYS = ("Linear", "Cosine", "Polynomial")
#: By the path of the optimizer: what each phase of its schedule has.
SCHEDULE = {
    where: tuple(
        Rule(f"{where}.schedule", f"{where}.schedule", message, remedy, f"self.all(p, {cel})")
        for message, remedy, cel in (
            ("only a Warmup has a start", "remove start, or set kind to Warmup", "p.kind == 'Warmup' || !has(p.start)"),
            (
                f"only {', '.join(_DECAYS[:-1])} and {_DECAYS[-1]} have an end",
                "remove end, or set kind to one of them",
                f"p.kind in {list(_DECAYS)} || !has(p.end)",
            ),
            (
                "a Polynomial needs a power, and other kinds have none",
                "state power with the kind Polynomial only",
                "(p.kind == 'Polynomial') == has(p.power)",
            ),
            (
                "a Step needs every and factor, and other kinds have neither",
                "state every and factor with the kind Step only",
                "(p.kind == 'Step') == has(p.every) && (p.kind == 'Step') == has(p.factor)",
            ),
        )
    )
    for where in (DENSE_OPTIMIZER, SPARSE_OPTIMIZER, TABLE_OPTIMIZER)
}
RULES = (
    MOMENTUM,
    NESTEROV,
    *EPSILON.values(),
    *BETAS.values(),
    *chain.from_iterable(SCHEDULE.values()),
)
