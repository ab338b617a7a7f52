"""Reads, changes and checks manifests. TorchX uses this module without the packages of the command line."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cpr_contract.file_uris import is_file_uri
from cpr_operator.api import yaml_text
from cpr_operator.api.cprjob_spec import GROUP, KIND, CPRJobSpec
from cpr_operator.api.rules.rule import Invalid
from cpr_operator.api.status import Status
from cpr_operator.api.validate import InvalidSpecError, parse_document, parse_spec, refused
from cpr_operator.cli.command_errors import DocumentError

STORE = ("snapshots", "store")
#: The folder of published models in that of a local run.
PUBLISHED = "published"
LOCAL_BUCKET = "saves"
DEFAULT_NAMESPACE = "default"
#: The file name of the standard input.
STDIN = Path("-")


def read_documents(path: Path) -> tuple[Any, ...]:
    """Return all objects in the YAML documents of a file, and each item of a List. Raises DocumentError."""
    try:
        documents = yaml_text.read_documents(sys.stdin.read() if path == STDIN else path.read_bytes())
    except (OSError, UnicodeDecodeError, yaml_text.YamlTextError) as error:
        raise DocumentError(f"cannot read {path}: {error}") from error
    items: list[Any] = []
    for each in documents:
        match each:
            case {"kind": str(kind), "items": list(listed)} if kind.endswith("List"):
                items += listed
            case _:
                items.append(each)
    return tuple(items)


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
    that is a folder stays, and so does a store that a change sets. Models that go to S3 are published beside `saves`.
    Raises DocumentError, InvalidSpecError.
    """
    document = copy.deepcopy(read_single(path))
    parsed = tuple(map(parse_change, changes))
    for keys, value in parsed:
        set_value(document, keys, value)
    if not any(keys[:2] == STORE for keys, _ in parsed):
        match document:
            case {"spec": {"snapshots": {"store": {"endpoint": str(endpoint)}}}} if is_file_uri(endpoint):
                pass
            case {"spec": {"snapshots": {"store": dict()} as snapshots}}:  # validation reports a missing one
                snapshots["store"] = {"endpoint": saves.as_uri(), "bucket": LOCAL_BUCKET}
                match document["spec"].get("publish"):
                    case {"to": str(to)} as publish if not is_file_uri(to):
                        publish["to"] = saves.with_name(PUBLISHED).as_uri()
    spec = parse_document(document)
    _refuse_issuer(spec)
    restore = spec.restore_from
    if restore is not None and restore.anchor is None:
        field = f"spec.restoreFrom.{'job' if restore.latest_of is None else 'latestOf'}"
        remedy = "name the key of an anchor in spec.restoreFrom.anchor"
        raise InvalidSpecError((Invalid(field, "there is no other job on this machine", remedy),))
    document["metadata"].setdefault("namespace", DEFAULT_NAMESPACE)
    return dict(document)


def _refuse_issuer(spec: CPRJobSpec) -> None:
    """Raise InvalidSpecError for a job that names an issuer: a local run has none."""
    if spec.security.certificates is not None:
        remedy = "remove it here (--set security.certificates=null): the CA of a local job signs itself"
        field = "spec.security.certificates"
        raise InvalidSpecError((Invalid(field, "there is no cert-manager on this machine", remedy),))


def changed_spec(spec: Mapping[str, Any], status: Mapping[str, Any], changes: tuple[str, ...]) -> dict[str, Any]:
    """Return a job's spec with every `PATH=VALUE` applied, if its present status permits the changes.

    Raises DocumentError, InvalidSpecError.
    """
    document = {"spec": copy.deepcopy(dict(spec))}
    for keys, value in map(parse_change, changes):
        set_value(document, keys, value)
    changed = parse_spec(document["spec"])
    if invalid := refused(parse_spec(spec), changed, Status.model_validate(status)):
        raise InvalidSpecError(invalid)
    _refuse_issuer(changed)
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
        match place:
            case dict():
                place = place.setdefault(key, {})
            case list():
                place = _item(place, key, shown)
            case _:
                raise DocumentError(f"--set {shown}: cannot set {key}, because its parent is a plain value")
    match place:
        case dict():
            place[keys[-1]] = value
        case list():
            _item(place, keys[-1], shown)
            place[int(keys[-1])] = value
        case _:
            raise DocumentError(f"--set {shown}: cannot set {keys[-1]}, because its parent is a plain value")


def _is_job(document: Any) -> bool:
    """Return whether a document is a CPRJob, perhaps with a wrong version or kind, which validation reports."""
    match document:
        case {"kind": kind} if kind == KIND:
            return True
        case {"apiVersion": str(version)}:
            return version.partition("/")[0] == GROUP
        case _:
            return False


def _item(items: list[Any], key: str, shown: str) -> Any:
    if not key.isdecimal() or int(key) >= len(items):
        raise DocumentError(f"--set {shown}: {key} is not an index of a list of {len(items)} items")
    return items[int(key)]
