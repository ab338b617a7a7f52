"""The commands for models in a store: `export`, `evaluate` and `import`. They parse options."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cpr_contract.choices import Dense, ExportFormat, Missing
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.command_options import (
    ClusterOptions,
    Source,
    Workdir,
    check_folder,
    is_on_cluster,
    job_name,
    on_cluster,
)
from cpr_operator.cli.console import out

models = typer.Typer(rich_markup_mode=None)


@models.command()
@on_cluster
def export(  # noqa: PLR0913 -- one parameter per option
    source: Source = None,
    *,
    to: Annotated[
        str, typer.Option(metavar="DIR|URI", help="Folder here, or s3://bucket/prefix or file:///folder of the job.")
    ],
    form: Annotated[
        ExportFormat, typer.Option("--format", help="Write the dense network as a program, too, in this format.")
    ] = "safetensors",
    since: Annotated[
        str | None, typer.Option(metavar="ANCHOR", help="Write only the rows that changed after this anchor.")
    ] = None,
    anchor: Annotated[
        str | None, typer.Option(metavar="ANCHOR", help="An anchor of the job. Defaults to its result.")
    ] = None,
    workdir: Workdir = None,
    kube: ClusterOptions,
) -> None:
    """Write a job's model as files for serving."""
    from cpr_contract.requests import ExportRequest
    from cpr_operator.cli.export import export as export_model
    from cpr_operator.cli.export import export_from, model_of
    from cpr_operator.cli.job_source import find_job
    from cpr_operator.cli.trainer_process import trainer_pod

    if "://" not in to:
        check_folder("--to", Path(to))
    model = model_of(find_job(source, workdir, kube), anchor)
    request = ExportRequest(model.anchor, form, since)
    if is_on_cluster(source):
        with trainer_pod(source, kube) as pod:
            export_from(pod, request, to)
    else:
        raise typer.Exit(export_model(model.job_spec, request, to, os.environ))


@models.command()
@on_cluster
def evaluate(
    source: Source = None,
    *,
    workdir: Workdir = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    kube: ClusterOptions,
) -> None:
    """Score a finished job's model on the held-out rows."""
    from cpr_operator.cli.export import evaluate as evaluate_model
    from cpr_operator.cli.export import model_of
    from cpr_operator.cli.job_source import find_job
    from cpr_operator.cli.trainer_process import role_runner

    model = model_of(find_job(source, workdir, kube))
    with role_runner(source, kube, os.environ) as run:
        evaluate_model(model, out, run, as_json=json)


@models.command("import")
@on_cluster
def import_(  # noqa: PLR0913 -- one parameter per option
    source: Annotated[
        str,
        typer.Argument(metavar="cpr/NAME|FILE", help="The job to import for: on the cluster, or a manifest."),
    ],
    *,
    from_: Annotated[
        list[str],
        typer.Option(
            "--from",
            metavar="PATH|URI",
            help="A .safetensors, .npy or torch.save file, a folder of them, a DCP, a dump.",
        ),
    ],
    name: Annotated[
        str | None, typer.Option(help="Name of the import, which its key follows from. Defaults to the job's.")
    ] = None,
    map_: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            metavar="TENSOR=NAME",
            help="Take this tensor for a table, a layer, or TABLE:sum, :ids, :keys, :count.",
        ),
    ] = None,
    missing: Annotated[Missing, typer.Option(help="The action if the source lacks tables or layers.")] = "Fail",
    dense: Annotated[Dense, typer.Option(help="Import of the dense network: ByName or Initialise.")] = "ByName",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    kube: ClusterOptions,
) -> None:
    """Import a model that was trained elsewhere, as an anchor that jobs can start from."""
    from cpr_contract.requests import ImportRequest
    from cpr_operator.api.validate import parse_job
    from cpr_operator.cli.document import read_single
    from cpr_operator.cli.importing import checked, import_model, parse_map
    from cpr_operator.cli.trainer_process import run_role, trainer_pod

    mapped, here = tuple(map(parse_map, map_ or ())), not is_on_cluster(source)
    job = parse_job(read_single(Path(source)), uid="import") if here else None
    named = name or (job_name(source) if job is None else job.job_name)
    request = checked(ImportRequest(tuple(from_), named, mapped, missing, dense), here=here)
    if job is None:
        with trainer_pod(source, kube, unstarted=True) as pod:
            import_model(None, request, out, pod.run, as_json=json)
    elif kube.text:
        raise OptionError(f"only a job on a cluster takes{kube.text}; name it as cpr/NAME")
    else:
        import_model(job, request, out, partial(run_role, environment=os.environ), as_json=json)
