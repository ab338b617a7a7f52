"""The commands of `cprjob` for jobs on a cluster: they parse options and call `cpr_operator.client`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cpr_operator.api.terminal_text import printable_log
from cpr_operator.cli.command_errors import DocumentError, OptionError
from cpr_operator.cli.command_options import ClusterOptions, Endpoint, ListingForm, Workdir, job_name, on_cluster
from cpr_operator.cli.console import INTERRUPTED, err, interruptible, out
from cpr_operator.cli.kill_options import parse_member

jobs = typer.Typer(rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="JOB", parser=job_name, help="Name of the job, also as cpr/NAME.")]
Names = Annotated[list[str], typer.Argument(metavar="JOB...", parser=job_name, help="Names of jobs, also as cpr/NAME.")]
AllNamespaces = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Look in all namespaces.")]


@jobs.command()
@on_cluster
def submit(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="YAML files with CPRJobs; - is stdin.")],
    *,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow the job until it is over.")] = False,
    kube: ClusterOptions,
) -> None:
    """Create jobs on the cluster."""
    from cpr_operator.cli.plan_command import show_warnings

    documents = _manifests(files)
    if watch and len(documents) != 1:
        raise OptionError(f"--watch follows one job, and there are {len(documents)}")
    with kube.client() as client:
        created = [client.submit(each) for each in documents]
        for job in created:
            out.print(f"created {job.namespace}/{job.name}", markup=False, highlight=False)
            show_warnings(job.spec, err)
        if watch:
            in_namespace = ClusterOptions(kube.kubeconfig, kube.context, created[0].namespace)
            raise typer.Exit(_watch(in_namespace, created[0].name))


@jobs.command()
@on_cluster
def get(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[JOB]...", parser=job_name, help="Names of jobs; by default all of the namespace."),
    ] = None,
    *,
    all_namespaces: AllNamespaces = False,
    output: Annotated[ListingForm, typer.Option("--output", "-o", help="How to print them.")] = "table",
    kube: ClusterOptions,
) -> None:
    """List jobs, or print some."""
    from cpr_operator.cli.job_views import listing

    with kube.client() as client:
        if names and all_namespaces:
            raise OptionError("--all-namespaces lists jobs; give it without names")
        found = [client.get(each) for each in names] if names else client.list(all_namespaces=all_namespaces)
        if not found and output in {"table", "wide"}:
            err.print(f"no jobs in {'the cluster' if all_namespaces else client.namespace}", highlight=False)
            return
        single = len(names or ()) == 1
        shown = listing(found, output, time.time(), namespaces=all_namespaces, single=single)
        out.print(shown, highlight=False, soft_wrap=True)


@jobs.command()
@on_cluster
def describe(job: Name, *, kube: ClusterOptions) -> None:
    """Show the details of a job: progress, members, conditions, failures and events."""
    from cpr_operator.cli.job_views import description

    with kube.client() as client:
        out.print(description(client.get(job), client.events(job)), highlight=False)


@jobs.command()
@on_cluster
def top(
    job: Annotated[
        str | None,
        typer.Argument(metavar="[JOB]", parser=job_name, help="Name of the job; by default all of the namespace."),
    ] = None,
    *,
    all_namespaces: AllNamespaces = False,
    kube: ClusterOptions,
) -> None:
    """Show the progress of a job until it is over, or a table of all jobs."""
    from cpr_operator.cli.job_views import follow_all, follow_job

    with interruptible(), kube.client() as client:
        if job is None:
            follow_all(client, out, all_namespaces=all_namespaces)
        elif all_namespaces:
            raise OptionError("--all-namespaces lists jobs; give it without a name")
        else:
            follow_job(client, job, kube, out, from_start=False)


@jobs.command()
@on_cluster
def logs(  # noqa: PLR0913 -- one parameter per option
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB|URI]",
            help="Name of the job; or its store, for ended processes: s3://bucket/prefix or file:///folder.",
        ),
    ] = None,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Continue with new lines, also of later pods, until the job ends.")
    ] = False,
    role: Annotated[Literal["trainer", "shard"], typer.Option(help="Role of the member.")] = "trainer",
    index: Annotated[
        int | None, typer.Option(min=0, help="Index of the member. Defaults to the leader, or to shard 0.")
    ] = None,
    previous: Annotated[
        bool, typer.Option("--previous", "-p", help="The last output of the process that ended last, from the store.")
    ] = False,
    incarnation: Annotated[
        int | None, typer.Option(min=1, help="The last outputs of this incarnation's processes, from the store.")
    ] = None,
    workdir: Workdir = None,
    endpoint: Endpoint = None,
    uid: Annotated[str | None, typer.Option("--job", metavar="UID", help="The job, if a store has several.")] = None,
    kube: ClusterOptions,
) -> None:
    """Print the log of a trainer or a shard, or the last output of its ended processes."""
    from cpr_operator.cli.last_outputs import heading, last_outputs
    from cpr_operator.cli.store_source import find_source
    from cpr_operator.cli.trainer_process import role_runner

    if previous or incarnation is not None:
        if follow or (previous and incarnation is not None):
            raise OptionError("give one of --follow, --previous and --incarnation")
        source = job if job is None or "://" in job else f"cpr/{job_name(job)}"
        found = find_source(source, workdir, endpoint, uid, kube)
        with role_runner(source, kube, os.environ) as run:
            outputs = last_outputs(found, role, index, incarnation, run)
        for output in outputs:
            err.print(heading(output), markup=False, highlight=False, soft_wrap=True)
            _print_log(output.text.rstrip("\n"))
        return
    if job is None or "://" in job or workdir or endpoint or uid:
        raise OptionError("name a job on the cluster; a store has ended processes: add --previous or --incarnation N")
    with interruptible(), kube.client() as client:
        for line in client.logs(job_name(job), role=role, index=index, follow=follow):
            _print_log(line.rstrip("\n"))


@jobs.command()
@on_cluster
def events(job: Name, *, kube: ClusterOptions) -> None:
    """List the events of a job, oldest first. Kubernetes keeps them for an hour."""
    from cpr_operator.cli.job_views import events_table

    with kube.client() as client:
        out.print(events_table(client.events(job)), highlight=False)


@jobs.command()
@on_cluster
def suspend(job: Name, *, kube: ClusterOptions) -> None:
    """Suspend a job: it saves everything and releases its pods. Nothing is lost."""
    with kube.client() as client:
        changed = client.suspend(job)
        out.print(f"{changed.name} is being suspended: it saves everything and stops", highlight=False)
        out.print(f"To resume the job: cprjob resume {changed.name}{kube.text}", highlight=False, soft_wrap=True)


@jobs.command()
@on_cluster
def resume(job: Name, *, kube: ClusterOptions) -> None:
    """Resume a suspended job."""
    with kube.client() as client:
        changed = client.resume(job)
        out.print(f"{changed.name} is being resumed", highlight=False)


@jobs.command()
@on_cluster
def scale(
    job: Name,
    *,
    trainers: Annotated[int | None, typer.Option(min=1, help="Number of trainers, at any time.")] = None,
    shards: Annotated[int | None, typer.Option(min=1, help="Number of shards, while the job is suspended.")] = None,
    kube: ClusterOptions,
) -> None:
    """Change the number of trainers or shards of a job."""
    if trainers is None and shards is None:
        raise OptionError("give --trainers N, --shards N, or both")
    with kube.client() as client:
        spec = client.scale(job, trainers=trainers, shards=shards).spec
        members = f"{spec.trainers.replicas} trainers and {spec.shards.replicas} shards"
        out.print(f"{job} is being scaled to {members}", highlight=False)


@jobs.command()
@on_cluster
def chaos(
    job: Name,
    *,
    kill: Annotated[
        list[str] | None, typer.Option(metavar="ROLE/INDEX", help="Delete a member's pod at once, as shard/1.")
    ] = None,
    drain: Annotated[
        list[str] | None, typer.Option(metavar="ROLE/INDEX", help="The same with time to save, as at a node's drain.")
    ] = None,
    kube: ClusterOptions,
) -> None:
    """Inject failures into a running job."""
    targets = [(parse_member(each), False) for each in kill or ()]
    targets += [(parse_member(each), True) for each in drain or ()]
    if not targets:
        raise OptionError("give at least one member, as in --kill shard/1")
    with kube.client() as client:
        for (role, index), drained in targets:
            pod = client.kill(job, role, index, drain=drained)
            out.print(f"{'drained' if drained else 'killed'} {role}/{index} (pod {pod})", highlight=False)


@jobs.command()
@on_cluster
def delete(names: Names, *, kube: ClusterOptions) -> None:
    """Delete jobs. Their saves stay, unless they have snapshots.deleteWithJob."""
    with kube.client() as client:
        for name in names:
            client.delete(name)
            out.print(f"deleted {client.namespace}/{name}", markup=False, highlight=False)


def _print_log(text: str) -> None:
    typer.echo(printable_log(text) if out.is_terminal else text)


def _manifests(files: list[Path]) -> list[dict[str, Any]]:
    """Return all CPRJobs of the files; other objects are left to kubectl."""
    from cpr_operator.cli.document import jobs_of, read_documents

    found: list[dict[str, Any]] = []
    for file in files:
        documents = read_documents(file)
        in_file = jobs_of(documents)
        if not in_file:
            raise DocumentError(f"{file} contains no CPRJob")
        if len(in_file) < len(documents):
            others = len(documents) - len(in_file)
            err.print(f"{file}: {others} other objects are left to kubectl apply", markup=False, highlight=False)
        found += in_file
    return found


def _watch(kube: ClusterOptions, name: str) -> int:
    """Follow a job and return the exit code: 0 only if it succeeded. Ctrl-C leaves the job running."""
    from cpr_operator.cli.job_views import follow_job

    try:
        with kube.client() as client:
            return 0 if follow_job(client, name, kube, out, from_start=True).phase == "Succeeded" else 1
    except KeyboardInterrupt:
        out.print(f"The job keeps running. To follow it: cprjob top {name}{kube.text}", highlight=False, soft_wrap=True)
        return INTERRUPTED
