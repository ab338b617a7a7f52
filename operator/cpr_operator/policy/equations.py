"""CPR's equations, in its symbols.

From Maeng et al., "Understanding and Improving Failure Tolerant Training for Deep Learning Recommendation with Partial
Recovery", MLSys 2021, section 4. O_save, O_load, O_res are the times to save, load and reschedule, T_save the interval
between two saves, T_fail the mean time between failures, N the number of shards, PLS the portion of lost samples.
Extensions of the paper are marked "derived": m shards lost per failure, and a save that counts only `commit_s` after
its cut. All times are seconds. Overheads are portions of the useful training time.
"""

from __future__ import annotations

import math


def expected_age(interval_s: float, commit_s: float = 0.0) -> float:
    """T_save / 2: the mean age of the last save at a failure; with the time to its commit (derived)."""
    return interval_s / 2 + commit_s


def full_overhead(interval_s: float, mtbf_s: float, save_s: float, recover_s: float, commit_s: float = 0.0) -> float:
    """O_full / T_total = O_save / T_save + (O_load + T_save/2 + O_res) / T_fail.

    `recover_s` is O_load + O_res. Derived: training since the cut of the last committed save is
    repeated, so the age grows by `commit_s`.
    """
    return save_s / interval_s + (recover_s + expected_age(interval_s, commit_s)) / mtbf_s


def partial_overhead(interval_s: float, mtbf_s: float, save_s: float, recover_s: float) -> float:
    """O_part / T_total = O_save / T_save + (O_load + O_res) / T_fail. No training is repeated."""
    return save_s / interval_s + recover_s / mtbf_s


def full_interval(save_s: float, mtbf_s: float) -> float:
    """T_save,full = sqrt(2 * O_save * T_fail), which minimises O_full."""
    return math.sqrt(2 * save_s * mtbf_s)


def pls_of_failure(age_s: float, total_s: float, shards: int, lost: float = 1.0) -> float:
    """PLS of one failure: (S_i - S_last) / (S_total * N) for one shard; of m shards m times that (derived).

    `age_s` is the training time since the last save, `total_s` that of the whole job.
    """
    return lost * age_s / (total_s * shards)


def expected_pls(interval_s: float, mtbf_s: float, shards: int, lost: float = 1.0, commit_s: float = 0.0) -> float:
    """E[PLS] = T_save / (2 * T_fail * N) over the whole job; m times that, at an age grown by `commit_s` (derived)."""
    return lost * expected_age(interval_s, commit_s) / (mtbf_s * shards)


def partial_interval(pls: float, mtbf_s: float, shards: int, lost: float = 1.0, commit_s: float = 0.0) -> float:
    """T_save,part = 2 * PLS * N * T_fail: `expected_pls` solved for the interval; not positive if no interval does."""
    return 2 * (pls * shards * mtbf_s / lost - commit_s)


def replay_interval(save_s: float, mtbf_s: float, replay: float) -> float:
    """sqrt(2 * O_save * T_fail / rho), which minimises O_save / T_save + rho * T_save / (2 * T_fail) (derived).

    `replay` is rho, the seconds that it takes to push one second of training again; more than 0.
    """
    return math.sqrt(2 * save_s * mtbf_s / replay)


def uncovered(shards: int, data_shards: int, lost: float) -> float:
    """1 - (1 - 2 k / (N - 1))^(m - 1): the portion of failures that parity does not give back (derived).

    k shards (`data_shards`) have a common parity, so two lost ones are given back if they are more than k apart on the
    ring of N. The m shards of a failure are taken to be any; the first may lie anywhere.
    """
    close = min(2 * data_shards / (shards - 1), 1.0)
    return 1 - math.pow(1 - close, max(lost - 1, 0.0))


def rolled_back(failures: float, interval_s: float, commit_s: float, affordable_s: float) -> float:
    """Expected seconds of training that rollbacks undo, if only losses beyond the budget are rolled back (derived).

    The ages of `failures` are uniform in [O_commit, T_save + O_commit]. `affordable_s` is the budget
    divided by m: the sum of ages that the budget covers. The sum of ages is compound Poisson and is
    approximated as normal. Its excess over the budget is rolled back, and at least each age that
    alone exceeds the budget.
    """
    mean = failures * expected_age(interval_s, commit_s)
    if affordable_s <= 0 or failures <= 0:
        return mean
    deviation = math.sqrt(failures * (expected_age(interval_s, commit_s) ** 2 + interval_s**2 / 12))
    far = (affordable_s - mean) / deviation
    excess = deviation * (math.exp(-far * far / 2) / math.sqrt(2 * math.pi) - far * math.erfc(far / math.sqrt(2)) / 2)
    oldest = interval_s + commit_s
    alone = failures * max(oldest**2 - max(affordable_s, commit_s) ** 2, 0.0) / (2 * interval_s)
    return min(mean, max(excess, alone))


def break_even_pls(save_s: float, mtbf_s: float, shards: int, lost: float = 1.0) -> float:
    """The budget above which partial recovery is cheaper: PLS > m * sqrt(2 * O_save / T_fail) / (4 * N).

    Derived: T_save,part > T_save,full / 2.
    """
    return lost * math.sqrt(2 * save_s / mtbf_s) / (4 * shards)
