"""One rule between fields, and how a broken one is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn, TypeVar

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

#: The error type by which `validate` knows a rule that pydantic found broken.
BROKEN_RULE = "rule"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, in CEL. `at` is the object that is CEL's `self`, as a path of API names; "" is the root.

    A name with [] is a list, and the path stands for each of its elements. Where the expression `skip_on_server` is
    true, the rule is too expensive for the API server, and only `evaluation` checks it.
    """

    at: str
    field: str
    message: str
    remedy: str
    cel: str
    skip_on_server: str = ""

    @property
    def text(self) -> str:
        """The API server's message: field, message and remedy."""
        return f"{self.field}: {self.message}; {self.remedy}"

    @property
    def server_cel(self) -> str:
        """The expression in the CRD."""
        return f"{self.skip_on_server} || {self.cel}" if self.skip_on_server else self.cel

    def once(self, key: str) -> AfterValidator:
        """A validator of a list, which breaks the rule if two elements have the same `key`.

        The API server knows such lists from the schema (list type `map`), so these rules have no CEL.
        """

        def check(value: tuple[T, ...]) -> tuple[T, ...]:
            if len({getattr(each, key) for each in value}) < len(value):
                _fail(self.field, self.message, self.remedy)
            return value

        return AfterValidator(check)


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
