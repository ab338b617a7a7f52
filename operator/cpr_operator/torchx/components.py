"""The component that `torchx run` knows as `cprjob.dlrm`.

TorchX reads annotations as they are, so they stand here as types and not as text. Its release 0.7.0 reads no unions. It
loads this module with every component, so what a job needs is loaded when there is one.
"""

from torchx.specs import AppDef


def dlrm(
    job: str,
    image: str = "",
    trainers: int = 0,
    shards: int = 0,
    name: str = "",
) -> AppDef:
    """Train a recommendation model whose embedding shards recover one by one, within an accuracy budget.

    Args:
        job: a YAML file with one CPRJob
        image: the trainer image; else the file's
        trainers: how many trainers; 0: as many as in the file
        shards: how many embedding shards; 0: as many as in the file
        name: the job's name; else the file's
    """
    from cpr_operator.torchx.manifest import read_application  # noqa: PLC0415 -- see above

    changes = {("image",): image, ("trainers", "replicas"): trainers, ("shards", "replicas"): shards}
    return read_application(job, name, {keys: value for keys, value in changes.items() if value})
