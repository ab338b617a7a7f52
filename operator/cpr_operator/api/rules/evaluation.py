"""Evaluates the CEL of rules over a document, as the API server does."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from typing import Any

from cel_expr_python import cel

from cpr_operator.api.rules.rule import Rule

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


def broken(
    rules: Iterable[Rule],
    document: Mapping[str, Any],
    before: Mapping[str, Any] | None = None,
    malformed: Collection[str] = (),
) -> Iterator[tuple[Rule, str]]:
    """Each rule that the document breaks, with the field that it names, in which [2] is an element of a list.

    document: as the API server stores it (`schema.stored`). before: the document that it replaces, for rules that
    compare. malformed: names of fields that do not match the schema; rules that mention them are skipped. Raises
    RuntimeError if a rule cannot be evaluated, unless there are malformed fields.
    """
    # Rules with the same `at` share what CEL makes of the objects there: that takes longer than most evaluations.
    objects: dict[str, list[tuple[str, cel.Activation]]] = {}
    for rule in rules:
        if not rule.cel or (malformed and not set(malformed).isdisjoint(_NAME.findall(rule.cel))):
            continue
        if rule.at not in objects:
            found = _objects(document, rule.at)
            objects[rule.at] = [(path, _activation(value, before)) for path, value in found]
        for path, activation in objects[rule.at]:
            holds = _program(rule.cel).eval(activation).value()
            if holds is False:
                yield rule, path + rule.field.removeprefix(rule.at.replace("[]", ""))
            elif holds is not True and not malformed:
                raise RuntimeError(f"{path}: {rule.cel}: {holds}")


@cache
def _environment() -> cel.Env:
    variables = {"self": cel.Type.DYN, "oldSelf": cel.Type.DYN}
    return cel.NewEnv(variables=variables, functions=_KUBERNETES)


def _activation(value: Any, before: Mapping[str, Any] | None) -> cel.Activation:
    return _environment().Activation({"self": value, "oldSelf": before})


@cache
def _program(expression: str) -> cel.Expression:
    return _environment().compile(expression)


def _objects(document: Mapping[str, Any], at: str) -> list[tuple[str, Any]]:
    """The values that a path stands for, each with its own path; none where a part of the path is absent."""
    found: list[tuple[str, Any]] = [("", document)]
    for name in at.split(".") if at else ():
        key = name.removesuffix("[]")
        found = [(f"{path}.{key}", v[key]) for path, v in found if isinstance(v, Mapping) and key in v]
        if name != key:
            found = [(f"{path}[{i}]", each) for path, v in found if isinstance(v, list) for i, each in enumerate(v)]
    return [(path.removeprefix("."), value) for path, value in found]
