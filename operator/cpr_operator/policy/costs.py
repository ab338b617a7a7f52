"""The costs of saves and recoveries: assumed values, marked as guesses, until the job has measured them."""

from __future__ import annotations

from dataclasses import dataclass

#: The weight of a new measurement in the running estimate.
NEWEST = 0.3


#: Values to assume until they are measured, in seconds.
GUESSES = {"save_stall_s": 0.1, "commit_s": 1.0, "load_s": 5.0, "reschedule_s": 5.0}


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of training. `guessed` names the fields that are not measured yet.

    save_stall_s: O_save, the training time lost per save.
    commit_s: the time from a cut to its committed anchor, during which training continues.
    load_s: O_load, the time to load a save in a recovery.
    reschedule_s: O_res, the time to get a new pod in a recovery.
    """

    save_stall_s: float
    commit_s: float
    load_s: float
    reschedule_s: float
    guessed: tuple[str, ...] = ()

    @property
    def recover_s(self) -> float:
        """O_load + O_res, the cost of any recovery, partial or full."""
        return self.load_s + self.reschedule_s

    @classmethod
    def measured(
        cls,
        save_stall_s: float | None = None,
        commit_s: float | None = None,
        load_s: float | None = None,
        reschedule_s: float | None = None,
    ) -> Costs:
        """Costs from measurements; None stands for the guess."""
        given = {"save_stall_s": save_stall_s, "commit_s": commit_s, "load_s": load_s, "reschedule_s": reschedule_s}
        known = {name: GUESSES[name] if value is None else value for name, value in given.items()}
        return cls(**known, guessed=tuple(name for name, value in given.items() if value is None))


def running(old: float | None, measured: float) -> float:
    """The exponential moving average with one more measurement. The first measurement is the average itself."""
    return measured if old is None else old + NEWEST * (measured - old)
