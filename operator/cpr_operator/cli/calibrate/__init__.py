"""`cprjob calibrate`: how much AUC lost samples cost, measured on the user's model and data.

`design` says which runs to make, `cli.trials` has the trainer image make them, `sensitivity` reads the slope off the
pairs of runs, `show` and `plot` tell it; `command` is all of it in order.
"""

from cpr_operator.cli.calibrate.command import CalibrateOptions, calibrate
from cpr_operator.cli.calibrate.design import parse_levels

__all__ = ["CalibrateOptions", "calibrate", "parse_levels"]
