"""One rule between fields, and how a broken one is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from pydantic_core import PydanticCustomError

#: The error type by which `validate` knows a broken rule.
BROKEN_RULE = "rule"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. `at` is the object that is CEL's `self`, as a path of API names; "" is the root.

    A list in the path stands for each of its elements.
    """

    at: str
    field: str
    message: str
    remedy: str
    cel: str

    @property
    def text(self) -> str:
        """The API server's message: field, message and remedy."""
        return f"{self.field}: {self.message}; {self.remedy}"

    def require(self, holds: object) -> None:
        """Raise pydantic's error unless the rule holds. Call it from a validator of `field`."""
        if not holds:
            context = {"field": self.field, "message": self.message, "remedy": self.remedy}
            raise PydanticCustomError(BROKEN_RULE, "{message}", context)


@dataclass(frozen=True, slots=True)
class BadPart:
    """An invalid part of a free-form field: its path below the field, what is wrong, and the remedy."""

    path: str
    message: str
    remedy: str

    def fail(self, field: str) -> NoReturn:
        """Raise pydantic's error about the part of `field`. Call it from a validator of `field`."""
        context = {"field": f"{field}.{self.path}", "message": self.message, "remedy": self.remedy}
        raise PydanticCustomError(BROKEN_RULE, "{message}", context)
