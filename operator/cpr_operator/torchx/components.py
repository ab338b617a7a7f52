"""The component that `torchx run` finds as `cprjob.dlrm`.

TorchX reads annotations as objects, so this module does not postpone their evaluation. Release 0.7.0 reads no unions.
TorchX imports this module with every component, so imports of a job's code are in the function.
"""

from torchx.specs import AppDef


def dlrm(
    job: str,
    image: str = "",
    trainers: int = 0,
    shards: int = 0,
    name: str = "",
) -> AppDef:
    """Train a recommendation model with individually recoverable embedding shards, within an accuracy budget.

    Args:
        job: a YAML file with one CPRJob
        image: the trainer image; else the file's
        trainers: the number of trainers; 0: as in the file
        shards: the number of embedding shards; 0: as in the file
        name: the job's name; else the file's
    """
    from cpr_operator.torchx.application import read_application  # noqa: PLC0415 -- see above

    changes = {("image",): image, ("trainers", "replicas"): trainers, ("shards", "replicas"): shards}
    return read_application(job, name, {keys: value for keys, value in changes.items() if value})
