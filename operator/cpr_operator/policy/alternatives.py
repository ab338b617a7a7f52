"""Alternatives to a plan: CPR's own open loop, and the plan with other parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cpr_operator.policy import equations
from cpr_operator.policy.inputs import Inputs
from cpr_operator.policy.law import SHORTEST_S
from cpr_operator.policy.plan import Plan, plan

#: The largest factor by which a parameter is changed in search of another mode.
_FURTHEST = 1000.0
#: Number of steps of the search, and of bisections within a step, which give three digits.
_STEPS = 40
_HALVINGS = 10
#: The largest portion of all samples.
_MOST = 0.999


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """CPR's own plan: an interval for the whole job, regardless of the actual losses.

    Its expected loss and overhead are portions of all samples and of the training time.
    """

    interval_s: float
    expected_pls: float
    expected_overhead: float


def partial(inputs: Inputs) -> OpenLoop:
    """Return the interval with the whole budget as its expected loss, so that about half of all jobs exceed it."""
    odds, recover_s = inputs.odds, inputs.costs.recover_s
    longest = equations.partial_interval(inputs.limit, odds.mtbf_s, inputs.shards, odds.lost, odds.commit_s)
    interval_s = max(longest, odds.commit_s, SHORTEST_S)
    lost = equations.expected_pls(interval_s, odds.mtbf_s, inputs.shards, odds.lost, odds.commit_s)
    return OpenLoop(interval_s, lost, equations.partial_overhead(interval_s, odds.mtbf_s, odds.save_s, recover_s))


def full(inputs: Inputs) -> OpenLoop:
    """Return the interval with the lowest cost of full recovery."""
    odds, recover_s = inputs.odds, inputs.costs.recover_s
    interval_s = max(equations.full_interval(odds.save_s, odds.mtbf_s), odds.commit_s, SHORTEST_S)
    overhead = equations.full_overhead(interval_s, odds.mtbf_s, odds.save_s, recover_s, odds.commit_s)
    return OpenLoop(interval_s, 0.0, overhead)


def break_even(inputs: Inputs) -> float:
    """Return the budget above which partial recovery is cheaper, as a portion of all samples."""
    odds = inputs.odds
    return equations.break_even_pls(odds.save_s, odds.mtbf_s, inputs.shards, odds.lost)


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the plan's inputs: how to read it, and how to scale it by a factor."""

    read: Callable[[Inputs], float]
    scaled: Callable[[Inputs, float], Inputs]


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The plan if one parameter had another value."""

    parameter: str
    value: float
    plan: Plan


def _with_lost(inputs: Inputs, factor: float) -> Inputs:
    lost = min(max(inputs.estimate.lost_per_failure * factor, 1.0), inputs.shards)
    return replace(inputs, estimate=replace(inputs.estimate, lost_per_failure=lost))


#: The parameters by name, in portions, seconds or shards.
PARAMETERS: Mapping[str, Parameter] = {
    "limit": Parameter(lambda i: i.limit, lambda i, factor: replace(i, limit=min(i.limit * factor, _MOST))),
    "mtbf_s": Parameter(
        lambda i: i.estimate.mtbf_s,
        lambda i, factor: replace(i, estimate=replace(i.estimate, beta_s=i.estimate.beta_s * factor)),
    ),
    "lost_per_failure": Parameter(lambda i: i.estimate.lost_per_failure, _with_lost),
    "save_stall_s": Parameter(
        lambda i: i.costs.save_stall_s,
        lambda i, factor: replace(i, costs=replace(i.costs, save_stall_s=i.costs.save_stall_s * factor)),
    ),
}


def halved_and_doubled(inputs: Inputs) -> tuple[WhatIf, ...]:
    """Return the plans with each parameter halved and doubled, if that changes its value."""
    found = (_what_if(name, PARAMETERS[name].scaled(inputs, factor)) for name in PARAMETERS for factor in (0.5, 2.0))
    return tuple(each for each in found if each.value != PARAMETERS[each.parameter].read(inputs))


def mode_changes(inputs: Inputs) -> tuple[WhatIf, ...]:
    """Return the plans at the nearest values of each parameter with another mode, up to a factor of 1000."""
    found = (_mode_change(name, inputs, _FURTHEST**sign) for name in PARAMETERS for sign in (-1, 1))
    return tuple(each for each in found if each is not None)


def _mode_change(name: str, inputs: Inputs, furthest: float) -> WhatIf | None:
    mode, step = plan(inputs).mode, furthest ** (1 / _STEPS)
    scaled = PARAMETERS[name].scaled

    def changes_mode(factor: float) -> bool:
        return plan(scaled(inputs, factor)).mode != mode

    near = next((step**n for n in range(_STEPS) if changes_mode(step ** (n + 1))), None)
    if near is None:
        return None
    far = near * step
    for _ in range(_HALVINGS):
        middle = (near * far) ** 0.5
        near, far = (near, middle) if changes_mode(middle) else (middle, far)
    return _what_if(name, scaled(inputs, far))


def _what_if(name: str, inputs: Inputs) -> WhatIf:
    return WhatIf(name, PARAMETERS[name].read(inputs), plan(inputs))
