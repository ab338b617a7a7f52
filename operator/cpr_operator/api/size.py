"""How large a job may be, so that its pods can be told of it and the API server can store it."""

from __future__ import annotations

from cpr_contract.codec import LONGEST, pack, to_json
from cpr_operator.api.job_spec import to_job_spec
from cpr_operator.api.spec import CPRJobSpec

#: The bytes of the largest object that etcd takes.
LARGEST_OBJECT = 1536 << 10
#: The bytes of a status with the longest description and the most lost ranges, and of each member in it.
_STATUS, _MEMBER = 288 << 10, 512
#: So many tables, features and numbers are described in less than `packing.LONGEST`, whatever they are.
_FEW = 32


def has_long_description(spec: CPRJobSpec) -> bool:
    """Whether a new job is described in more than its pods and its status can hold."""
    columns = spec.data.columns
    numeric = 0 if columns is None else len(columns.counts) + len(columns.numbers)
    if len(spec.model.tables) + len(spec.model.features or ()) + numeric <= _FEW:
        return False
    return len(pack(to_json(to_job_spec(spec, "", "")))) > LONGEST


def longest_spec(members: int) -> int:
    """The characters of the longest spec, as JSON, of a job with so many shards and trainers.

    The API server keeps a spec twice: it notes for each field of a named element who has set it. The rest of an object
    is the status, which grows with the members.
    """
    return (LARGEST_OBJECT - _STATUS - _MEMBER * members) // 2
