"""What saves and recoveries cost: guesses that are stated as such, until the job has measured itself."""

from __future__ import annotations

from dataclasses import dataclass

#: How much a new measurement weighs against all before it.
NEWEST = 0.3


#: What is assumed until it is measured, in seconds.
GUESSES = {"save_stall_s": 0.1, "commit_s": 1.0, "load_s": 5.0, "reschedule_s": 5.0}


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of training. `guessed` names the fields that are not measured yet.

    `save_stall_s` (O_save) is training time lost to one save, `commit_s` the time from a cut to its committed anchor,
    during which training goes on, `load_s` (O_load) and `reschedule_s` (O_res) what a recovery waits for.
    """

    save_stall_s: float
    commit_s: float
    load_s: float
    reschedule_s: float
    guessed: tuple[str, ...] = ()

    @property
    def recover_s(self) -> float:
        """O_load + O_res: what every recovery costs, partial or full."""
        return self.load_s + self.reschedule_s

    @classmethod
    def measured(
        cls,
        save_stall_s: float | None = None,
        commit_s: float | None = None,
        load_s: float | None = None,
        reschedule_s: float | None = None,
    ) -> Costs:
        """Costs from what was measured; None stands for the guess."""
        given = {"save_stall_s": save_stall_s, "commit_s": commit_s, "load_s": load_s, "reschedule_s": reschedule_s}
        known = {name: GUESSES[name] if value is None else value for name, value in given.items()}
        return cls(**known, guessed=tuple(name for name, value in given.items() if value is None))


def running(old: float | None, measured: float) -> float:
    """A running estimate with one more measurement; the first one stands alone."""
    return measured if old is None else old + NEWEST * (measured - old)
