"""The component that `torchx run` knows as `cprjob.dlrm`.

TorchX reads annotations as they are, so they stand here as types and not as text.
"""

from pathlib import Path

from torchx.specs import AppDef

from cpr_operator.cli import document
from cpr_operator.torchx.errors import SchedulerError
from cpr_operator.torchx.manifest import application


def dlrm(
    job: str,
    image: str | None = None,
    trainers: int = 0,
    shards: int = 0,
    name: str | None = None,
) -> AppDef:
    """Train a recommendation model whose embedding shards recover one by one, within an accuracy budget.

    Args:
        job: a YAML file with one CPRJob
        image: the trainer image; else the file's
        trainers: how many trainers; 0: as many as in the file
        shards: how many embedding shards; 0: as many as in the file
        name: the job's name; else the file's
    """
    changes = {("image",): image, ("trainers", "replicas"): trainers, ("shards", "replicas"): shards}
    try:
        found = document.read_single(Path(job))
        for keys, value in changes.items():
            if value:
                document.set_value(found, keys, value)
    except document.DocumentError as error:
        raise SchedulerError(str(error)) from None
    if name and isinstance(found.get("metadata"), dict):
        found["metadata"]["name"] = name
    return application(found)
