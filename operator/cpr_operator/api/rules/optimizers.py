"""Rules of the optimizers and their schedules."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

_DENSE, _SPARSE, _TABLE = "spec.model.denseOptimizer", "spec.model.sparseOptimizer", "spec.model.tables[].optimizer"
_ALL = (_SPARSE, _TABLE, _DENSE)
_ADAMS = {_DENSE: ("Adam", "AdamW"), _SPARSE: ("Adam",), _TABLE: ("Adam",)}
_DECAYS = ("Linear", "Cosine", "Polynomial")


def _rule(at: str, field: str, message: str, remedy: str, cel: str) -> Rule:
    return Rule(at, f"{at.replace('[]', '')}{field}", message, remedy, cel)


#: What each phase of a schedule has: message, remedy and CEL.
_PHASES = (
    ("only a Warmup has a start", "remove start, or set kind to Warmup", "self.kind == 'Warmup' || !has(self.start)"),
    (
        f"only {', '.join(_DECAYS[:-1])} and {_DECAYS[-1]} have an end",
        "remove end, or set kind to one of them",
        f"self.kind in {list(_DECAYS)} || !has(self.end)",
    ),
    (
        "a Polynomial needs a power, and other kinds have none",
        "state power with the kind Polynomial only",
        "(self.kind == 'Polynomial') == has(self.power)",
    ),
    (
        "a Step needs every and factor, and other kinds have neither",
        "state every and factor with the kind Step only",
        "(self.kind == 'Step') == has(self.every) && (self.kind == 'Step') == has(self.factor)",
    ),
)
RULES = (
    _rule(
        _DENSE,
        ".momentum",
        "only SGD has a momentum",
        "remove it, or set kind to SGD",
        "self.kind == 'SGD' || !has(self.momentum)",
    ),
    _rule(
        _DENSE,
        ".nesterov",
        "needs a momentum",
        "state momentum, or remove nesterov",
        "!self.nesterov || has(self.momentum)",
    ),
    *(
        _rule(
            at,
            ".epsilon",
            "SGD has no epsilon",
            "remove it, or choose another kind",
            "self.kind != 'SGD' || !has(self.epsilon)",
        )
        for at in _ALL
    ),
    *(
        _rule(
            at,
            f".{beta}",
            f"only {' and '.join(kinds)} {'has' if len(kinds) == 1 else 'have'} {beta}",
            "remove it, or set kind to Adam",
            f"self.kind in {list(kinds)} || !has(self.{beta})",
        )
        for at, kinds in _ADAMS.items()
        for beta in ("beta1", "beta2")
    ),
    *(_rule(f"{at}.schedule[]", "", *phase) for at in _ALL for phase in _PHASES),
)
