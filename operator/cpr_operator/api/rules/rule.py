"""One rule between fields, and how a broken one is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from pydantic_core import PydanticCustomError

#: The error type by which `validate` knows a rule that pydantic found broken.
BROKEN_RULE = "rule"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, in CEL. `at` is the object that is CEL's `self`, as a path of API names; "" is the root.

    A name with [] is a list, and the path stands for each of its elements. Where `unless` holds, the API server is
    not asked, because it would not pay the evaluation. `evaluation` checks the rule all the same.
    """

    at: str
    field: str
    message: str
    remedy: str
    cel: str
    unless: str = ""

    @property
    def text(self) -> str:
        """The API server's message: field, message and remedy."""
        return f"{self.field}: {self.message}; {self.remedy}"

    @property
    def priced(self) -> str:
        """The API server's expression."""
        return f"{self.unless} || {self.cel}" if self.unless else self.cel

    def fail(self) -> NoReturn:
        """Raise pydantic's error about the rule. Call it from a validator of `field`."""
        _fail(self.field, self.message, self.remedy)


@dataclass(frozen=True, slots=True)
class BadPart:
    """An invalid part of a free-form field: its path below the field, what is wrong, and the remedy."""

    path: str
    message: str
    remedy: str

    def fail(self, field: str) -> NoReturn:
        """Raise pydantic's error about the part of `field`. Call it from a validator of `field`."""
        _fail(f"{field}.{self.path}", self.message, self.remedy)


def _fail(field: str, message: str, remedy: str) -> NoReturn:
    raise PydanticCustomError(BROKEN_RULE, "{message}", {"field": field, "message": message, "remedy": remedy})
