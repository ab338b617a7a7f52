"""Why a plan was chosen, in sentences for people. Apart from the law, which is called far more often than read."""

from __future__ import annotations

from cpr_operator.policy.bits import bits_for
from cpr_operator.policy.inputs import Inputs
from cpr_operator.policy.law import TIE, Choice, Odds


def reason(inputs: Inputs, odds: Odds, choice: Choice, recoveries: float, restores: float) -> str:
    """What is done, what it is expected to cost (once that is measured), why, and what was guessed.

    `recoveries` is what O_load + O_res are expected to cost in either mode, as a portion of the training time;
    `restores` is how often a row is expected to be restored in the whole job.
    """
    full, partial = (f"{cost + recoveries:.2%}" for cost in (choice.full_cost, choice.partial_cost))
    every = f"a save every {duration(choice.interval_s)}"
    if choice.mode == "Full":
        done = f"Full recovery, {every}"
        cost = f"{full} of the time expected"
        why = _why_full(inputs, partial)
    else:
        done = f"Partial recovery, {every}"
        cost = f"{partial} of the time expected, against {full} with full recovery"
        why = _why_interval(inputs, odds, choice)
    done = f"{done}: {cost}." if inputs.measured else f"{done}."
    bits = f"Rows are saved in {bits_for(restores)} bits, for {restores:.2g} restores of each."
    chosen = "" if inputs.fixed_bits else bits
    guessed = f"Only guessed so far: {', '.join(inputs.guesses)}." if inputs.guesses else ""
    return " ".join(filter(None, (done, why, chosen, inputs.basis, guessed)))


def duration(seconds: float) -> str:
    """Seconds for people, to three digits."""
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _why_full(inputs: Inputs, partial: str) -> str:
    if inputs.mode == "Full":
        return "It is asked for."
    if inputs.limit <= 0:
        return "The budget allows no loss."
    if inputs.remaining <= 0:
        return "Nothing is left of the budget."
    takes = f"take {partial} and " if inputs.measured else ""
    return f"Partial recovery would {takes}lose samples: too little is won, if anything."


def _why_interval(inputs: Inputs, odds: Odds, choice: Choice) -> str:
    left = f"what is left of the budget ({inputs.remaining:.3g})"
    shards = f"{odds.lost:.2g} shard{'' if odds.lost == 1 else 's'}"
    match choice.bound:
        case "fixed":
            return "The interval is fixed."
        case "failures":
            failures = f" ({odds.left_s / odds.mtbf_s:.2g}, of {shards} each)" if inputs.total_s is not None else ""
            return (
                f"At longer intervals the failures still expected{failures} and their spread would not fit into {left}."
            )
        case "failure":
            return f"At longer intervals the next failure, of {shards}, would not fit into {left}."
        case "tie":
            return f"Longer intervals would win less than {TIE:.1%} of the time and lose more samples."
        case "commit":
            return f"Saves cannot follow each other faster: each takes {duration(odds.commit_s)}."
        case "full":
            return (
                f"With {left} it does not pay to save more often than full recovery would; "
                "a loss that does not fit rolls the job back."
            )
