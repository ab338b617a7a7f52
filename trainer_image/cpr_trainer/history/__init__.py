"""The history of a job in its store: the last output of each process, for the time after the process has ended."""

from cpr_trainer.history.outputs import store_output

__all__ = ["store_output"]
