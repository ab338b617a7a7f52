"""Finds a factory in code of the user's, which a job names as package.module:factory."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from cpr_trainer.errors import TrainerError


def load(name: str, field: str, failure: type[TrainerError]) -> Callable[..., Any]:
    """Import the factory that a field of the job names. Raises `failure` if there is none."""
    module, _, attribute = name.partition(":")
    try:
        factory = getattr(import_module(module), attribute)
    except Exception as error:  # Importing runs code that is not ours.
        raise failure(
            f"The entrypoint {name} cannot be imported: {type(error).__name__}: {error}.",
            f"Put its package on the PYTHONPATH of the image, and correct {field}.",
        ) from error
    if not callable(factory):
        raise failure(f"The entrypoint {name} cannot be called.", "Name a function or a class.")
    return factory  # type: ignore[no-any-return]
