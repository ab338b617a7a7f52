"""Rules between fields, and the evaluation of their CEL as by the API server."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, NoReturn, TypeVar

from cel_expr_python import cel
from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

#: The type of pydantic's error for a broken rule.
BROKEN_RULE = "rule"
T = TypeVar("T")
_NAME = re.compile(r"\w+")
_ANY = cel.Type.List(cel.Type.DYN)
#: The functions that the API server adds to CEL, as far as rules use them.
_KUBERNETES = (
    cel.FunctionDecl(
        "sets.contains",
        [cel.Overload("sets_contains", cel.Type.BOOL, [_ANY, _ANY], impl=lambda all_, some: set(some) <= set(all_))],
    ),
    cel.FunctionDecl("sum", [cel.Overload("list_sum", cel.Type.DYN, [_ANY], is_member=True, impl=sum)]),
)


@dataclass(frozen=True)
class Rule:
    """One rule, in CEL. `path` is that of its field, in API names, with a / behind the object that is CEL's `self`.

    A name with [] is a list, and the path means each of its elements. The API server skips the rule if the expression
    `skip_on_server` is true, because it would be too expensive; `broken` evaluates it always.
    """

    path: str
    message: str
    remedy: str
    cel: str
    skip_on_server: str = ""

    @cached_property
    def at(self) -> str:
        """Return the path of the object that is CEL's `self`; "" is the root."""
        return self.path.partition("/")[0]

    @property
    def field(self) -> str:
        """Return the path of the field, in which a list stands for each of its elements."""
        return self.path.replace("/", ".").replace("[]", "").strip(".")

    @property
    def text(self) -> str:
        """Return the API server's message: field, message and remedy."""
        return f"{self.field}: {self.message}; {self.remedy}"

    @property
    def server_cel(self) -> str:
        """Return the expression in the CRD."""
        return f"{self.skip_on_server} || {self.cel}" if self.skip_on_server else self.cel

    def once(self, key: str) -> AfterValidator:
        """Return a validator of a list, which fails if two elements have the same `key`.

        These rules have no CEL, because the list type `map` in the schema makes the API server check them.
        """

        def check(value: tuple[T, ...]) -> tuple[T, ...]:
            if len({getattr(each, key) for each in value}) < len(value):
                fail(self.field, self.message, self.remedy)
            return value

        return AfterValidator(check)


@dataclass(frozen=True, slots=True)
class Invalid:
    """One invalid field: its path in the document, or below a free-form field; the problem, and the remedy."""

    field: str
    message: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}; {self.remedy}"

    def below(self, field: str) -> Invalid:
        """Return the same for a path below `field`."""
        return replace(self, field=f"{field}.{self.field}")


def fail(field: str, message: str, remedy: str) -> NoReturn:
    """Raise pydantic's error about an invalid field. Call it from a validator."""
    raise PydanticCustomError(BROKEN_RULE, "{message}", {"field": field, "message": message, "remedy": remedy})


def broken(
    rules: Iterable[Rule],
    document: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    malformed: Collection[str] = (),
) -> Iterator[tuple[Rule, str]]:
    """Yield each rule that the document breaks, with its field, in which [2] is an element of a list.

    document: as the API server stores it (`crd.stored`). before: the document that it replaces, for rules that
    compare. malformed: names of fields that do not match the schema; rules that mention them are skipped. Raises
    RuntimeError if a rule cannot be evaluated, unless there are malformed fields.
    """
    # Rules with the same `at` share CEL's activations, because creating one takes longer than most evaluations.
    objects: dict[str, list[tuple[str, cel.Activation]]] = {}
    for rule in rules:
        if not rule.cel or (malformed and not set(malformed).isdisjoint(_NAME.findall(rule.cel))):
            continue
        if rule.at not in objects:
            objects[rule.at] = [
                (path, _environment().Activation({"self": value, "oldSelf": before}))
                for path, value in _objects(document, rule.at)
            ]
        for path, activation in objects[rule.at]:
            holds = _program(rule.cel).eval(activation).value()
            if holds is False:
                yield rule, f"{path}.{rule.path.partition('/')[2]}".strip(".")
            elif holds is not True and not malformed:
                raise RuntimeError(f"{path}: {rule.cel}: {holds}")


@cache
def _environment() -> cel.Env:
    variables = {"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}
    return cel.NewEnv(variables=variables, functions=_KUBERNETES)


@cache
def _program(expression: str) -> cel.Expression:
    return _environment().compile(expression)


def _objects(document: Mapping[str, Any], at: str) -> list[tuple[str, Any]]:
    """Return the values at a path, each with its own path; none if a part of the path is absent."""
    found: list[tuple[str, Any]] = [("", document)]
    for name in at.split(".") if at else ():
        key = name.removesuffix("[]")
        found = [(f"{path}.{key}", v[key]) for path, v in found if isinstance(v, Mapping) and key in v]
        if name != key:
            found = [(f"{path}[{i}]", each) for path, v in found if isinstance(v, list) for i, each in enumerate(v)]
    return [(path.removeprefix("."), value) for path, value in found]
