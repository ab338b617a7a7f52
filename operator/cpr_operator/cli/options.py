"""What options of several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

#: How `cprjob get` prints jobs.
ListingForm = Literal["table", "wide", "yaml", "json", "name"]


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
