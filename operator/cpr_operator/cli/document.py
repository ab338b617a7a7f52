"""Reads, changes and checks manifests. TorchX uses this module without the packages of the command line.

`cpr/NAME` is always a job on a cluster, and any other name a file. A file NAME in a folder `cpr` is `./cpr/NAME`.
"""

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
from cpr_operator.cli.command_errors import DocumentError, InvalidDocumentError

STORE = ("snapshots", "store")
LOCAL_BUCKET = "saves"
DEFAULT_NAMESPACE = "default"
#: The file name of the standard input.
STDIN = Path("-")
#: The prefix of the name of a job on a cluster.
CLUSTER = "cpr/"


def read_documents(path: Path) -> tuple[Any, ...]:
    """Return all objects in the YAML documents of a file, and each item of a List. Raises DocumentError."""
    try:
        documents = yaml_text.read_documents(sys.stdin.read() if path == STDIN else path.read_bytes())
    except (OSError, UnicodeDecodeError, yaml_text.YamlTextError) as error:
        raise DocumentError(f"cannot read {path}: {error}") from error
    return tuple(item for each in documents for item in _items_of(each))


def jobs_of(documents: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the CPRJobs among the documents.

    A single document of any kind is returned, so that validation reports its errors.
    """
    return documents if len(documents) == 1 else tuple(filter(_is_job, documents))


def read_single(path: Path) -> Any:
    """Return the one CPRJob of a file. Raises DocumentError."""
    jobs = jobs_of(read_documents(path))
    if len(jobs) != 1:
        raise DocumentError(f"{path} contains {len(jobs)} CPRJobs; it must contain exactly one")
    return jobs[0]


def read_job(path: Path, changes: tuple[str, ...], saves: Path) -> dict[str, Any]:
    """Return the one CPRJob of a file for a local run, with every `PATH=VALUE` applied.

    Saves go to the folder `saves`, because this machine may not reach the store of a cluster. A store in the manifest
    that is a folder stays, and so does a store that a change sets. Raises DocumentError, InvalidDocumentError.
    """
    document = copy.deepcopy(read_single(path))
    parsed = tuple(map(parse_change, changes))
    for keys, value in parsed:
        set_value(document, keys, value)
    if not any(keys[:2] == STORE for keys, _ in parsed):
        _use_folder(document, saves)
    invalid = validate(document) or _without_source_job(document["spec"])
    if invalid:
        raise InvalidDocumentError(invalid)
    document["metadata"].setdefault("namespace", DEFAULT_NAMESPACE)
    return dict(document)


def changed_spec(spec: Mapping[str, Any], status: Mapping[str, Any], changes: tuple[str, ...]) -> dict[str, Any]:
    """Return a job's spec with every `PATH=VALUE` applied, if its present status permits the changes.

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


def is_on_cluster(source: str | None) -> bool:
    """Return whether the source is the name of a job on a cluster."""
    return source is not None and source.startswith(CLUSTER)


def job_name(text: str) -> str:
    """Return the name of a job on a cluster without the prefix `cpr/`."""
    return text.removeprefix(CLUSTER)


def _items_of(document: Any) -> tuple[Any, ...]:
    match document:
        case {"kind": str(kind), "items": list(items)} if kind.endswith("List"):
            return tuple(items)
        case _:
            return (document,)


def _is_job(document: Any) -> bool:
    """Return whether a document is a CPRJob, perhaps with a wrong version or kind, which validation reports."""
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


def _without_source_job(spec: Mapping[str, Any]) -> tuple[Invalid, ...]:
    """Return the fields of a valid spec that name other jobs, because a local run has none."""
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
            return  # validation reports the missing field
