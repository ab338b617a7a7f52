"""Runs code of the user: a factory that a job names as package.module:factory, and the object that it returns.

An error of that code is an error of the job, with the file and the line, and no crash of the process: another attempt
would end in the same way.
"""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from cpr_trainer.errors import TrainerError

#: Errors of the system that another attempt does not change: code or a file is not at its path.
_OF_FILES = (FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError)
#: Errors of memory, devices and networks, by the names of their classes: shards and data do without torch, and clients
#: of networks derive from these.
_MACHINE = {"MemoryError", "OutOfMemoryError", "AcceleratorError", "ConnectionError", "TimeoutError", "Timeout"}
#: Texts of the same errors of torch in a plain RuntimeError.
_MACHINE_TEXTS = ("DefaultCPUAllocator", "CUDA error", "cuDNN error")
_PACKAGES = str(Path(__file__).parent)
_STANDARD_LIBRARY = sysconfig.get_path("stdlib")
_LIBRARIES = ("/site-packages/torch/", "/site-packages/numpy/", "/site-packages/pyarrow/")


def load(name: str, field: str, failure: type[TrainerError]) -> Callable[..., Any]:
    """Import the factory that a field of the job names. Raises `failure` if there is none."""
    module, _, attribute = name.partition(":")
    remedy = f"Put its package on the PYTHONPATH of the image, and correct {field}."
    with user_code(f"The entrypoint {name} cannot be imported", remedy, failure):
        factory = getattr(import_module(module), attribute)
    if not callable(factory):
        raise failure(f"The entrypoint {name} cannot be called.", "Name a function or a class.")
    return factory  # type: ignore[no-any-return]


@contextmanager
def user_code(
    what: str, remedy: str, failure: type[TrainerError], passes: Callable[[BaseException], bool] = lambda _error: False
) -> Iterator[None]:
    """Run code of the user in this block: its errors become `failure`, `what` with the error and its location.

    Errors of this package pass, and those of memory, devices, networks and volumes, which the next attempt may not
    have. Errors with a true `passes` pass, too.
    """
    try:
        yield
    except TrainerError:
        raise
    except (Exception, SystemExit) as error:
        of_system = isinstance(error, OSError) and error.errno is not None and not isinstance(error, _OF_FILES)
        of_machine = not _MACHINE.isdisjoint(cls.__name__ for cls in type(error).__mro__)
        if of_system or of_machine or any(text in str(error) for text in _MACHINE_TEXTS) or passes(error):
            raise
        raise failure(f"{what}: {type(error).__name__}: {error}{_place_of(error)}.", remedy) from error


def _place_of(error: BaseException) -> str:
    """Return the innermost line outside of this package and of libraries, as " (FILE, line N)"; empty without one."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = frame.filename
        of_library = file.startswith((_PACKAGES, "<")) or any(library in file for library in _LIBRARIES)
        if not of_library and ("-packages/" in file or not file.startswith(_STANDARD_LIBRARY)):
            return f" ({file}, line {frame.lineno})"
    return ""
