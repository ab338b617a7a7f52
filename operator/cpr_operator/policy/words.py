"""Explains a plan in sentences. Separate from `law`, which simulations call far more often than anyone reads it."""

from __future__ import annotations

from cpr_operator.policy.bits import bits_for
from cpr_operator.policy.inputs import Inputs
from cpr_operator.policy.law import TIE, Choice, Odds

_WHY = {
    "fixed": "The interval is fixed.",
    "tie": f"Longer intervals would save less than {TIE:.1%} of the time and lose more samples.",
    "replay": "With longer intervals, failures would cost more time than saves, because more is pushed again.",
}


def reason(inputs: Inputs, odds: Odds, choice: Choice, recoveries: float, restores: float) -> str:
    """The plan, its expected cost once that is measured, its reason, and the figures that are still guesses.

    `recoveries` is the expected cost of O_load + O_res in either mode, as a fraction of the training time.
    `restores` is the expected number of restores of a row in the whole job.
    """
    full, partial = (f"{cost + recoveries:.2%}" for cost in (choice.full_cost, choice.partial_cost))
    every = f"a save every {duration(choice.interval_s)}"
    if inputs.replays:
        done = f"{choice.mode} recovery with replay, {every}"
        cost = f"expected overhead {partial}"
        rho = "" if inputs.replay_ratio is None else f", at {inputs.replay_ratio:.2g} s for each second of training"
        why = f"Trainers push again what a lost shard had learnt{rho}. {_why_interval(inputs, odds, choice)}"
        if inputs.data_shards:
            parity = f"Parity gives back a lost shard, after all but {inputs.uncovered:.0%} of failures."
            why = f"{parity} {_why_interval(inputs, odds, choice)}"
    elif choice.mode == "Full":
        done = f"Full recovery, {every}"
        cost = f"expected overhead {full}"
        why = _why_full(inputs, partial)
    else:
        done = f"Partial recovery, {every}"
        cost = f"expected overhead {partial}, compared with {full} for full recovery"
        why = _why_interval(inputs, odds, choice)
    done = f"{done}: {cost}." if inputs.measured else f"{done}."
    bits = f"Rows are saved with {bits_for(restores)} bits per value for {restores:.2g} expected restores."
    chosen = "" if inputs.fixed_bits else bits
    guessed = f"Still guessed: {', '.join(inputs.guesses)}." if inputs.guesses else ""
    return " ".join(filter(None, (done, why, chosen, inputs.basis, guessed)))


def duration(seconds: float) -> str:
    """A duration in s, min or h, to three digits."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _why_full(inputs: Inputs, partial: str) -> str:
    if inputs.mode == "Full":
        return "The spec asks for it."
    if inputs.limit <= 0:
        return "The budget allows no loss."
    if inputs.remaining <= 0:
        return "The budget is used up."
    costs = f"cost {partial} and " if inputs.measured else ""
    return f"Partial recovery would {costs}lose samples, and save too little time to justify that."


def _why_interval(inputs: Inputs, odds: Odds, choice: Choice) -> str:
    left = f"the remaining budget ({inputs.remaining:.3g})"
    shards = f"{odds.lost:.2g} shard{'' if odds.lost == 1 else 's'}"
    match choice.bound:
        case "fixed" | "tie" | "replay":
            return _WHY[choice.bound]
        case "failures":
            failures = f" ({odds.left_s / odds.mtbf_s:.2g}, of {shards} each)" if inputs.total_s is not None else ""
            expected = f"the remaining expected failures{failures} and their spread"
            return f"With longer intervals, {expected} would exceed {left}."
        case "failure":
            return f"With longer intervals, the next failure, of {shards}, would exceed {left}."
        case "commit":
            return f"Saves cannot be more frequent, because each takes {duration(odds.commit_s)}."
        case "full":
            return (
                f"With {left}, saving more often than full recovery would does not pay off; "
                "a loss that exceeds the budget rolls the job back."
            )
