"""Manifests: how they are read, changed and checked. TorchX uses this too, without the packages of the command line."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpr_contract.uris import is_file_uri
from cpr_operator.api import yaml_text
from cpr_operator.api.spec import GROUP, KIND
from cpr_operator.api.status import Status
from cpr_operator.api.validate import Invalid, InvalidSpecError, parse_spec, refused, validate

STORE = ("snapshots", "store")
LOCAL_BUCKET = "saves"
DEFAULT_NAMESPACE = "default"
#: The file name that stands for the standard input.
STDIN = Path("-")


class DocumentError(ValueError):
    """A file that cannot be read, or a change that does not fit it."""


class InvalidDocumentError(ValueError):
    """A manifest with invalid fields; `invalid` names every one."""

    def __init__(self, invalid: tuple[Invalid, ...]) -> None:
        super().__init__(f"{len(invalid)} invalid fields")
        self.invalid = invalid


def read_documents(path: Path) -> tuple[Any, ...]:
    """All objects in the YAML documents of a file, those of lists one by one; `-` is stdin. Raises DocumentError."""
    try:
        documents = yaml_text.read_documents(sys.stdin.read() if path == STDIN else path.read_bytes())
    except (OSError, UnicodeDecodeError, yaml_text.YamlTextError) as error:
        raise DocumentError(f"cannot read {path}: {error}") from error
    return tuple(item for each in documents for item in _items_of(each))


def jobs_of(documents: tuple[Any, ...]) -> tuple[Any, ...]:
    """The CPRJobs among the documents, which may describe a store or a Secret, too.

    A single document is returned whatever it is, so that validation says what it lacks.
    """
    return documents if len(documents) == 1 else tuple(filter(_is_job, documents))


def read_single(path: Path) -> Any:
    """The one CPRJob of a file. Raises DocumentError."""
    jobs = jobs_of(read_documents(path))
    if len(jobs) != 1:
        raise DocumentError(f"{path} contains {len(jobs)} CPRJobs; it must contain exactly one")
    return jobs[0]


def read_job(path: Path, changes: tuple[str, ...], saves: Path) -> dict[str, Any]:
    """The one CPRJob of a file, changed by every `PATH=VALUE` and made local.

    Saves go to the folder `saves`, because most manifests name a store of their cluster, which
    this machine cannot or should not reach. A store that is a folder already stays, and so does
    one that a change names.
    Raises DocumentError, InvalidDocumentError.
    """
    document = copy.deepcopy(read_single(path))
    parsed = tuple(map(parse_change, changes))
    for keys, value in parsed:
        set_value(document, keys, value)
    if not any(keys[:2] == STORE for keys, _ in parsed):
        _use_folder(document, saves)
    invalid = validate(document) or _without_ancestor(document["spec"])
    if invalid:
        raise InvalidDocumentError(invalid)
    document["metadata"].setdefault("namespace", DEFAULT_NAMESPACE)
    return dict(document)


def changed_spec(spec: Mapping[str, Any], status: Mapping[str, Any], changes: tuple[str, ...]) -> dict[str, Any]:
    """A job's spec with every `PATH=VALUE` applied, if its present status admits the changes.

    Raises DocumentError, InvalidDocumentError.
    """
    document = {"spec": copy.deepcopy(dict(spec))}
    for keys, value in map(parse_change, changes):
        set_value(document, keys, value)
    try:
        invalid = refused(parse_spec(spec), parse_spec(document["spec"]), Status.model_validate(status))
    except InvalidSpecError as error:
        raise InvalidDocumentError(error.invalid) from error
    if invalid:
        raise InvalidDocumentError(invalid)
    return document["spec"]


def parse_change(text: str) -> tuple[tuple[str, ...], Any]:
    """Split `data.samples=20000` into a path below spec and a YAML value.

    A leading `spec.` is allowed. Raises DocumentError.
    """
    path, equals, value = text.partition("=")
    keys = tuple(path.removeprefix("spec.").split("."))
    if not equals or not all(keys):
        raise DocumentError(f"--set {text!r} is not PATH=VALUE, as in data.samples=20000 or model.tables.0.rows=500")
    try:
        return keys, yaml_text.read_value(value)
    except yaml_text.YamlTextError as error:
        raise DocumentError(f"--set {text!r}: the value is not YAML: {error}") from error


def set_value(document: Any, keys: tuple[str, ...], value: Any) -> None:
    """Set one value below the document's spec, and create missing parents. Raises DocumentError."""
    shown = ".".join(("spec", *keys))
    if not isinstance(document, dict):
        raise DocumentError(f"--set {shown}: the document is not an object")
    place: Any = document.setdefault("spec", {})
    for key in keys[:-1]:
        place = _step(place, key, shown)
    match place:
        case dict():
            place[keys[-1]] = value
        case list():
            _item(place, keys[-1], shown)
            place[int(keys[-1])] = value
        case _:
            raise DocumentError(f"--set {shown}: cannot set {keys[-1]}, because its parent is a plain value")


def _items_of(document: Any) -> tuple[Any, ...]:
    match document:
        case {"kind": str(kind), "items": list(items)} if kind.endswith("List"):
            return tuple(items)
        case _:
            return (document,)


def _is_job(document: Any) -> bool:
    """Whether it is meant to be a CPRJob: a wrong version or kind is for validation to name."""
    match document:
        case {"kind": kind} if kind == KIND:
            return True
        case {"apiVersion": str(version)}:
            return version.partition("/")[0] == GROUP
        case _:
            return False


def _step(place: Any, key: str, shown: str) -> Any:
    match place:
        case dict():
            return place.setdefault(key, {})
        case list():
            return _item(place, key, shown)
        case _:
            raise DocumentError(f"--set {shown}: cannot set {key}, because its parent is a plain value")


def _item(items: list[Any], key: str, shown: str) -> Any:
    if not key.isdecimal() or int(key) >= len(items):
        raise DocumentError(f"--set {shown}: {key} is not an index of a list of {len(items)} items")
    return items[int(key)]


def _without_ancestor(spec: Mapping[str, Any]) -> tuple[Invalid, ...]:
    """What is wrong with a valid spec here, where there is no other job that it could name."""
    restore = spec.get("restoreFrom") or {}
    named = [name for name in ("job", "latestOf") if restore.get(name) is not None]
    remedy = "name the key of an anchor in spec.restoreFrom.anchor"
    return tuple(Invalid(f"spec.restoreFrom.{each}", "there is no other job on this machine", remedy) for each in named)


def _use_folder(document: Any, saves: Path) -> None:
    match document:
        case {"spec": {"snapshots": {"store": {"endpoint": str(endpoint)}}}} if is_file_uri(endpoint):
            return
        case {"spec": {"snapshots": {"store": dict()} as snapshots}}:
            snapshots["store"] = {"endpoint": saves.as_uri(), "bucket": LOCAL_BUCKET}
        case _:
            return  # validation names what is missing


# Which job a command is about: one on a cluster, one in a file, or that of a local run.
#
# `cpr/NAME` is always a job on a cluster. Any other name is a file, so the file NAME in a folder `cpr` is `./cpr/NAME`.


CLUSTER = "cpr/"


def is_on_cluster(source: str | None) -> bool:
    """Whether the source is the name of a job on a cluster."""
    return source is not None and source.startswith(CLUSTER)


def job_name(text: str) -> str:
    """The name of a job on a cluster, with or without `cpr/` before it."""
    return text.removeprefix(CLUSTER)
