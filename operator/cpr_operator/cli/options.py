"""What options of several commands have in common."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Literal

#: The jobs that `cprjob simulate` knows.
SimulatePreset = Literal["paper", "production", "scale"]
#: How `cprjob get` prints jobs.
ListingForm = Literal["table", "wide", "yaml", "json", "name"]


class TrainPreset(enum.StrEnum):
    """A model that `cprjob bench train` knows: Criteo Kaggle and Terabyte as in DLRM's own scripts, and MLPerf's."""

    KAGGLE = "kaggle"
    TERABYTE = "terabyte"
    MLPERF = "mlperf"


class RecoveryTier(enum.StrEnum):
    """How a member comes back that `cprjob bench recovery` kills."""

    IN_PLACE = "InPlace"
    SPARE = "Spare"
    NEW_POD = "NewPod"
    TRAINER = "Trainer"


class OptionError(ValueError):
    """An option whose value the command cannot use."""


def check_plot(path: Path) -> None:
    """Raise OptionError if no plot can be written to `path`. Call it before long work starts."""
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 -- slow to load, and only plots need it

    endings = sorted(FigureCanvasBase.filetypes)
    if path.suffix.removeprefix(".") not in endings:
        raise OptionError(f"--plot {path}: the name must end in one of .{', .'.join(endings)}")
    if not path.parent.is_dir():
        raise OptionError(f"--plot {path}: the folder {path.parent} does not exist")
