"""The account of a job's time: a fold over passes that attributes all of it to training or to one cause of loss.

The interval since the last pass belongs to the activity that the job had then. If the activity changed, or the operator
was away for long, the samples that the leader reports as trained decide: they stand for the time in which the job
trains as many at its usual speed. All sums are in whole milliseconds, so that the parts add up to the wall time.

Time is that of the operators' clocks. If the clock of a new operator is behind, no time passes until it has caught up.
The wall time is therefore the newest time less the first one, and clocks that differ distort it once, by at most their
difference.
"""

from __future__ import annotations

from dataclasses import dataclass

from cpr_operator.api.goodput_status import Activity, Goodput, LostTime

#: The field of `LostTime` for each activity but training.
CAUSES: dict[Activity, str] = {
    "Queued": "queued",
    "Starting": "starting",
    "Recovering": "recovering",
    "Suspended": "suspended",
    "WaitingForData": "waiting_for_data",
    "Finishing": "finishing",
}
#: Activities in which a leader may report samples.
_WITH_LEADER = frozenset({"Training", "Recovering", "WaitingForData", "Finishing"})
#: Activities before which the last samples were trained at an unknown time of the interval.
_AFTER_TRAINING = frozenset({"WaitingForData", "Finishing"})
#: An interval of more milliseconds is longer than an operator pauses between passes. Its activity alone shows nothing.
LONG_MS = 60_000
#: A long interval was spent in training if at least this part of it is needed for the samples trained in it.
_BUSY = 0.5


@dataclass(frozen=True, slots=True)
class Observation:
    """The part of a pass that the account depends on.

    activity: the activity from now on; None: the job has ended.
    reported: the samples trained by now, by a report of the generation that the interval belongs to; None without one.
    rolled_back: the samples of the anchor that the pass rolled the job back to; None if it did not.
    speed: samples per second without saves; None: unknown.
    saving_s, in_place_s: stalls by saves, and restarts of processes in their pods, reported since the pass before.
    """

    activity: Activity | None
    reported: int | None = None
    rolled_back: int | None = None
    speed: float | None = None
    saving_s: float = 0.0
    in_place_s: float = 0.0


def account(previous: Goodput | None, now: float, seen: Observation) -> Goodput:
    """Return the account as of `now`, in seconds since the epoch.

    A long interval with pods remains open, and the account unchanged but for its activity, until the leader reports
    again: an operator that was away cannot attribute it otherwise.
    """
    if previous is None:
        samples = seen.reported or 0
        return Goodput(updated=_ms(now) / 1000, activity=seen.activity, samples=samples, furthest_samples=samples)
    elapsed = max(_ms(now) - _ms(previous.updated), 0)
    if elapsed > LONG_MS and seen.reported is None and {previous.activity, seen.activity} <= _WITH_LEADER:
        activity = previous.activity if seen.activity == "Training" else seen.activity
        return _moved(previous, previous.samples, seen).evolve(activity=activity)
    trained, reached = _trained(previous, elapsed, seen)
    idle = elapsed - trained
    saving = min(_ms(seen.saving_s), idle)
    in_place = min(_ms(seen.in_place_s), idle - saving)
    repeated = _repeated(previous, trained, reached)
    lost = {"saving": saving, "repeated": repeated, "recovering": in_place}
    cause = CAUSES[_activity_of_rest(previous.activity, seen.activity)]
    lost[cause] = lost.get(cause, 0) + idle - saving - in_place
    return _moved(_added(previous, elapsed, trained - repeated, lost), reached, seen).evolve(
        updated=max(_ms(now) / 1000, previous.updated), activity=seen.activity
    )


def projected(goodput: Goodput, now: float) -> Goodput:
    """Return the account with the time since its end attributed to the present activity, unless that is training.

    For figures that are read while nothing changes, as of a job that is queued for days.
    """
    if goodput.activity is None or goodput.activity == "Training":
        return goodput
    elapsed = max(_ms(now) - _ms(goodput.updated), 0)
    return _added(goodput, elapsed, 0, {CAUSES[goodput.activity]: elapsed}).evolve(updated=max(now, goodput.updated))


def parts_ms(goodput: Goodput) -> dict[str, int]:
    """Return productive time and all lost times in milliseconds, by name."""
    return {"productive": _ms(goodput.productive_seconds)} | {name: _ms(value) for name, value in goodput.lost}


def _trained(previous: Goodput, elapsed: int, seen: Observation) -> tuple[int, int]:
    """Return the milliseconds of training in the interval, and the samples at its end."""
    reached = previous.samples if seen.reported is None else seen.reported
    further = max(reached - previous.samples, 0)
    was_training, later = previous.activity == "Training", seen.activity
    shown = elapsed if was_training else 0
    if seen.speed:
        shown = min(round(1000 * further / seen.speed), elapsed)
    if not was_training or (seen.reported is not None and (later is None or later in _AFTER_TRAINING)):
        return shown, reached
    if elapsed > LONG_MS and seen.reported is not None and shown < _BUSY * elapsed:
        return shown, reached
    stalls = min(_ms(seen.saving_s) + _ms(seen.in_place_s), elapsed)
    if seen.reported is None and seen.speed:
        # The next report contains these samples: they must not count for the time after this interval.
        reached += int((elapsed - stalls) * seen.speed / 1000)
    return elapsed - stalls, reached


def _repeated(previous: Goodput, trained: int, reached: int) -> int:
    """Return the part of the training time for samples below the furthest ones, in proportion to the samples."""
    further, behind = reached - previous.samples, previous.furthest_samples - previous.samples
    if behind <= 0:
        return 0
    return trained if further <= behind else trained * behind // further


def _activity_of_rest(before: Activity | None, after: Activity | None) -> Activity:
    """Return the activity that an interval without training belongs to: the former one, unless that is training."""
    if before is not None and before != "Training":
        return before
    if after is None:
        return "Finishing"
    return "Recovering" if after == "Training" else after


def _moved(goodput: Goodput, reached: int, seen: Observation) -> Goodput:
    """Return the account with the samples after the interval. After a rollback, those up to `reached` are repeated."""
    furthest = max(goodput.furthest_samples, seen.reported or 0)
    if seen.rolled_back is None:
        return goodput.evolve(samples=reached, furthest_samples=furthest)
    return goodput.evolve(samples=seen.rolled_back, furthest_samples=max(furthest, reached))


def _added(goodput: Goodput, elapsed: int, productive: int, lost: dict[str, int]) -> Goodput:
    """Return the account with more milliseconds."""
    wall, total = _ms(goodput.wall_seconds) + elapsed, _ms(goodput.productive_seconds) + productive
    parts = {name: (_ms(value) + lost.get(name, 0)) / 1000 for name, value in goodput.lost}
    return Goodput(
        ratio=round(total / wall, 6) if wall else None,
        wall_seconds=wall / 1000,
        productive_seconds=total / 1000,
        lost=LostTime(**parts),
        updated=goodput.updated,
        activity=goodput.activity,
        samples=goodput.samples,
        furthest_samples=goodput.furthest_samples,
    )


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
