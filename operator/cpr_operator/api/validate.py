"""Validates a document against the models, and names every invalid field at once, with a remedy.

It applies the same rules as the API server, so `cprjob validate` needs no cluster.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import ConfigDict, ValidationError
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from cpr_contract.codec import MAX_LENGTH
from cpr_contract.spec import JobSpec
from cpr_operator.api.base import Model
from cpr_operator.api.cprjob_spec import API_VERSION, KIND, CPRJobSpec
from cpr_operator.api.crd import Schema, stored, structural
from cpr_operator.api.job_spec import has_long_description, to_job_spec
from cpr_operator.api.rules import OF_SPEC, STATIC, rule
from cpr_operator.api.rules.rule import Invalid, Rule, broken
from cpr_operator.api.status import Status
from cpr_operator.api.templates import misplaced
from cpr_operator.api.transitions import TRANSITIONS

MAX_SHOWN = 40
#: The bytes of the largest object that etcd takes, of a status with the longest description and the most lost ranges,
#: and of each member in it.
_OBJECT_BYTES, _STATUS_BYTES, _MEMBER_BYTES = 1536 << 10, 288 << 10, 512
_QUOTED = "; without quotes YAML reads y, n, yes, no, on and off as true or false, and 1e3 as a number"


_TOO_DEEP = Invalid("", "is nested too deeply", "a manifest has about ten levels")


class InvalidSpecError(ValueError):
    """A spec that the models do not accept; `invalid` names every invalid field."""

    def __init__(self, invalid: tuple[Invalid, ...]) -> None:
        super().__init__("\n".join(str(one) for one in invalid))
        self.invalid = invalid


class InvalidStatusError(ValueError):
    """A status that was edited or that another version wrote; the message names every invalid field."""


class _Metadata(Model):
    """The metadata. Only the name is validated, by a rule."""

    name: str


class _Manifest(Model):
    """A CPRJob as a user writes it. A `status` is accepted and ignored."""

    model_config = ConfigDict(extra="forbid")

    api_version: Literal["cprjob.io/v1alpha1"]
    kind: Literal["CPRJob"]
    metadata: _Metadata
    spec: CPRJobSpec
    status: Any = None


def parse_spec(spec: Mapping[str, Any], *, checked: bool = False) -> CPRJobSpec:
    """Parse the spec of an object of the API server. Raises `InvalidSpecError`.

    checked: skip the rules, because they were checked before. Their evaluation takes most of the time: 0.3 to 0.7 ms,
    and 0.15 s for the largest model.
    """
    text = json_text(spec)
    parsed = _parsed(CPRJobSpec, text, () if checked else OF_SPEC, at="spec")
    _check_size(parsed, len(text))
    return parsed


def check_new(spec: CPRJobSpec) -> None:
    """Raise `InvalidSpecError` for a spec that is refused for new jobs, and accepted for jobs that run.

    Its description for the pods is too long, or its templates were written for another operator.
    """
    if has_long_description(spec):
        message = f"its description for the pods has more than {MAX_LENGTH} characters, packed"
        raise InvalidSpecError((Invalid("spec.model", message, "shorten the names of tables, features and columns"),))
    templates = {"spec.trainers.template": spec.trainers.template, "spec.shards.template": spec.shards.template}
    parts = ((field, misplaced(template)) for field, template in templates.items())
    if wrong := tuple(part.below(field) for field, part in parts if part):
        raise InvalidSpecError(wrong)


def parse_status(status: Mapping[str, Any]) -> Status:
    """Parse the status of an object of the API server. Raises `InvalidStatusError`."""
    try:
        return Status.model_validate(status)
    except ValidationError as error:
        wrong = (f"{_path(('status', *each['loc']))}: {each['msg']}" for each in error.errors(include_url=False))
        raise InvalidStatusError("\n".join(wrong)) from error


def validate(document: object) -> tuple[Invalid, ...]:
    """Return every invalid field of a CPRJob document in plain values; empty if it is valid."""
    try:
        parse_document(document)
    except InvalidSpecError as error:
        return error.invalid
    return ()


def parse_document(document: object) -> CPRJobSpec:
    """Parse the spec of a CPRJob document in plain values. Raises `InvalidSpecError` if any field is invalid."""
    if not isinstance(document, dict):
        remedy = f"start with apiVersion: {API_VERSION} and kind: {KIND}"
        raise InvalidSpecError((Invalid("", "is not an object", remedy),))
    spec = _parsed(_Manifest, json_text(document), STATIC).spec
    _check_size(spec, len(json_text(document["spec"])))
    check_new(spec)
    return spec


def parse_job(document: Any, uid: str) -> JobSpec:
    """Return the description that the pods of a document's job would get. Raises `InvalidSpecError`."""
    return to_job_spec(parse_document(document), uid, document["metadata"]["name"])


def _check_size(spec: CPRJobSpec, characters: int) -> None:
    """Raise `InvalidSpecError` if the API server cannot store a spec of this length together with its status.

    The server keeps a spec twice: it notes for each field of a named element who has set it. The rest of an object is
    the status, which grows with the members.
    """
    members = spec.shards.replicas + spec.trainers.replicas
    longest = (_OBJECT_BYTES - _STATUS_BYTES - _MEMBER_BYTES * members) // 2
    if characters > longest:
        message = f"it has {characters} characters as JSON; with {members} shards and trainers {longest} are the most"
        remedy = "shorten the names of tables, features and columns, or state fewer shards and trainers"
        raise InvalidSpecError((Invalid("spec", message, remedy),))


def json_text(document: Mapping[str, Any]) -> str:
    """Return the document as JSON, in which YAML's dates are strings.

    From JSON, pydantic is strict about numbers and yet accepts a list for a tuple. Raises `InvalidSpecError` for values
    that JSON cannot represent.
    """
    try:
        text = json.dumps(document, default=str)
        if "\\ud" in text:  # the escape of a character beyond 16 bits, or of half of one
            json.dumps(document, default=str, ensure_ascii=False).encode()
    except RecursionError:
        wrong = _TOO_DEEP
    except UnicodeEncodeError:
        wrong = Invalid("", "has half a character: a surrogate without the other one", "correct the text")
    except (TypeError, ValueError) as error:  # keys that are no text, or a value that contains itself
        wrong = Invalid("", f"is not JSON: {error}", "use maps with text as keys, lists, text and numbers")
    else:
        return text
    raise InvalidSpecError((wrong,))


M = TypeVar("M", bound=Model)


def _parsed(model: type[M], text: str, rules: Sequence[Rule], at: str = "") -> M:
    """Parse JSON text as a model. `at` is its field in the document; empty: it is the document.

    Raises `InvalidSpecError` with all errors. A field is named once, and not at all if a field below it is.
    """
    parsed, found = None, {}
    try:
        parsed = model.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        prefix = (at,) if at else ()
        shapes = (_invalid(details, model, prefix) for details in error.errors(include_url=False))
        found = {each.field: each for each in shapes}
    if rules:
        value = json.loads(text)
        document = stored({at: value} if at else value, _schema())
        malformed = {re.sub(r"\[\d+\]", "", field).rpartition(".")[2] for field in found}
        for one, field in broken(rules, document, malformed=malformed):
            found.setdefault(field, Invalid(field, one.message, one.remedy))
    if parsed is None or found:
        within = {field[: end.start()] for field in found for end in re.finditer(r"[.\[]", field)}
        raise InvalidSpecError(tuple(each for field, each in found.items() if field not in within))
    return parsed


def refused(before: CPRJobSpec, after: CPRJobSpec, status: Status) -> tuple[Invalid, ...]:
    """Return every field that must not be changed in the job's present status; empty if the change is permitted."""
    old, new = ({"spec": spec.to_dict(), "status": status.to_dict()} for spec in (before, after))
    return tuple(Invalid(field, rule.message, rule.remedy) for rule, field in broken(TRANSITIONS, new, old))


@cache
def _schema() -> Schema:
    return {"properties": {"spec": structural(CPRJobSpec, defaults=True)}}


def _invalid(details: ErrorDetails, model: type[Model], prefix: tuple[str, ...]) -> Invalid:
    context, value = details.get("ctx", {}), details["input"]
    field = _path(prefix + details["loc"])
    quoted = _QUOTED if isinstance(value, bool | int | float) else ""
    match details["type"]:
        case rule.BROKEN_RULE:
            # Below a list, the location has the index of the element.
            field = field if re.sub(r"\[\d+\]", "", field) == context["field"] else context["field"]
            message, remedy = context["message"], context["remedy"]
        case "json_invalid":  # the only error in text of json.dumps
            return _TOO_DEEP
        case "missing":
            message, remedy = "is missing", "add it"
        case "extra_forbidden":
            known = tuple(_schema_at(details["loc"][:-1], model)["properties"])
            similar = difflib.get_close_matches(to_camel(str(details["loc"][-1])), known, n=1)
            message = "is not a field of a CPRJob"
            remedy = f"did you mean {similar[0]}?" if similar else f"remove it, or use one of {', '.join(known)}"
        case "literal_error":
            message, remedy = f"{_shown(value)} is not one of {context['expected']}", f"use one of them{quoted}"
        case "string_type" if quoted:
            message, remedy = f"is {_shown(value)} and not text", f"put the text in quotes{quoted}"
        case "string_pattern_mismatch":
            expected = _schema_at(details["loc"], model).get("description", context["pattern"])
            message, remedy = f"{value!r} does not match {context['pattern']}", f"expected: {expected}"
        case _:
            text = details["msg"].removeprefix("Input ").replace("Tuple", "list").replace(" after validation", "")
            message, remedy = f"{text} (found {_shown(value)})", "correct it"
    return Invalid(field, message, remedy)


def _path(location: tuple[int | str, ...]) -> str:
    """Return a location as a path, such as `spec.model.tables[3].rows`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location).removeprefix(".")


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


def _schema_at(location: tuple[int | str, ...], model: type[Model]) -> dict[str, Any]:
    """Return the schema of the value at `location`."""
    node = structural(model, defaults=False)
    for part in location:
        node = node["items"] if isinstance(part, int) else node["properties"][part]
    return node
