"""Pins: anchors that stay, with all that they need, until a time, because a publisher reads them."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass

from cpr_contract.codec import ContractError, from_json, to_json
from cpr_trainer.checkpoint.format.keys import parse_save
from cpr_trainer.store import MissingError, Store

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Pin:
    """The keys of some anchors of a job, and the time until which they stay, in seconds since the epoch."""

    anchors: tuple[str, ...]
    until_s: float


def pin_key(job_uid: str, nonce: str) -> str:
    """Return the key of the pin of a process."""
    return f"{job_uid}/pins/{nonce}.json"


def write_pin(store: Store, job_uid: str, nonce: str, anchors: Collection[str], until_s: float) -> None:
    """Write the pin of a process, which replaces its last one. Raises StoreError."""
    store.put(pin_key(job_uid, nonce), to_json(Pin(tuple(sorted(anchors)), until_s)).encode())


def pinned_steps(store: Store, job_uid: str, now_s: float) -> frozenset[int]:
    """Return the steps of all anchors that are pinned at a time, and delete expired pins. Raises StoreError."""
    steps, expired = set[int](), list[str]()
    for entry in store.list(f"{job_uid}/pins/"):
        try:
            pin = from_json(Pin, store.get(entry.key))
        except MissingError:
            continue
        except ContractError as error:  # it never was whole, or is of a later release
            _LOG.warning("%s is ignored: %s", entry.key, error)
            continue
        if pin.until_s < now_s:
            expired.append(entry.key)
            continue
        steps.update(save.step for key in pin.anchors if (save := parse_save(key)) is not None)
    store.delete(expired)
    return frozenset(steps)
