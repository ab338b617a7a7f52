"""What options of several commands have in common."""

from __future__ import annotations

from pathlib import Path


class OptionError(ValueError):
    """An option of the command that it cannot obey."""


def check_plot(path: Path) -> None:
    """Raises OptionError if no plot can be written to `path`: to be found out before long work."""
    from matplotlib.backend_bases import FigureCanvasBase  # noqa: PLC0415 -- slow to load, and only plots need it

    endings = sorted(FigureCanvasBase.filetypes)
    if path.suffix.removeprefix(".") not in endings:
        raise OptionError(f"--plot {path}: the name must end in one of .{', .'.join(endings)}")
    if not path.parent.is_dir():
        raise OptionError(f"--plot {path}: there is no folder {path.parent}")
