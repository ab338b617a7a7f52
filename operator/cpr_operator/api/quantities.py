"""Kubernetes quantities of memory: parses those of a template's container, and adds to them.

The parser of the package `kubernetes` is not used, because its import would add two thirds of a second to `cprjob
plan` and `cprjob run`. A test compares the two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Literal

from cpr_contract import env

_QUANTITY = re.compile(r"(\d+|\d+\.\d*|\.\d+)([eE][+-]?\d{1,2}|[numkMGTPE]|[KMGTPE]i)?")
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = "KMGTPE"
#: The largest amount, which fits into every field of a status.
_MOST = 2**53
_MOST_CHARS = 32

Resource = Literal["memory", "ephemeral-storage"]
_DISK: Resource = "ephemeral-storage"


def read_bytes(quantity: object) -> int | None:
    """Return the bytes of a quantity, rounded up; None if it is invalid, which the API server reports for the pod."""
    text = str(quantity)
    found = _QUANTITY.fullmatch(text) if len(text) <= _MOST_CHARS and not isinstance(quantity, bool) else None
    if found is None:
        return None
    number, suffix = Decimal(found[1]), found[2] or ""
    if suffix.endswith("i"):
        number *= 1024 ** (_BINARY.index(suffix[0]) + 1)
    elif suffix:
        number = number.scaleb(_POWERS[suffix] if suffix in _POWERS else int(suffix[1:]))
    return math.ceil(number) if number <= _MOST else None


def write_bytes(size: int) -> str:
    """Return the bytes in the largest unit up to Gi that divides them."""
    for unit, name in ((2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki")):
        if size % unit == 0:
            return f"{size // unit}{name}"
    return str(size)


def main_container(template: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the container `main` of a pod template; empty if it has none."""
    containers = (template.get("spec") or {}).get("containers") or ()
    return next((each for each in containers if each.get("name") == env.MAIN_CONTAINER), {})


def limit_of(resources: object, resource: Resource) -> int | None:
    """Return the limit of a container, or else its request; None without either."""
    if not isinstance(resources, Mapping):
        return None
    stated = (resources.get(kind) for kind in ("limits", "requests"))
    amounts = (read_bytes(each.get(resource)) for each in stated if isinstance(each, Mapping))
    return next((each for each in amounts if each is not None), None)


def with_more(resources: Mapping[str, Any], resource: Resource, size: int) -> dict[str, Any]:
    """Return the resources with `size` more bytes in the request and in the limit, if they are stated."""
    more = dict(resources)
    for kind in ("requests", "limits"):
        stated = more.get(kind)
        if isinstance(stated, Mapping) and (amount := read_bytes(stated.get(resource))) is not None:
            more[kind] = {**stated, resource: write_bytes(amount + size)}
    return more


def with_disk(resources: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the resources with `size` more bytes of disk, which are requested even if no disk is stated."""
    more = with_more(resources, _DISK, size)
    if limit_of(more, _DISK) is None:
        more["requests"] = {**(more.get("requests") or {}), _DISK: write_bytes(size)}
    return more
