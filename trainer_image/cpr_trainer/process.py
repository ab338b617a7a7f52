"""The processes of a job, by role, from their arguments to their exit code.

Exit codes are those of `cpr_contract.reports`. Errors that a person can correct are written into the termination file
as a `Problem`. Only the code of the process's role is imported, so that a shard starts fast.
"""

from __future__ import annotations

import argparse
import gc
import logging
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from typing import get_args

from cpr_contract.choices import ExportFormat
from cpr_contract.env import ROLE_CLEANUP, ROLE_PUBLISHER, ROLE_RECORDER, ROLE_SHARD, ROLE_TRAINER
from cpr_contract.reports import ExitCode, Problem
from cpr_contract.requests import ExportRequest
from cpr_trainer.errors import TrainerError
from cpr_trainer.runtime import Environment, end_with, exit_code, problem_of, processors
from cpr_trainer.runtime.environment import termination_file

_LOG = logging.getLogger("cpr_trainer")

#: Roles that read a request from stdin and answer on stdout, by module.
_ANSWERING = {
    "calibrate": "cpr_trainer.calibration",
    "evaluate": "cpr_trainer.evaluate",
    "history": "cpr_trainer.history.records",
    "import": "cpr_trainer.importing.main",
    "inspect": "cpr_trainer.data.inspection",
    "inventory": "cpr_trainer.inventory",
    "outputs": "cpr_trainer.history.outputs",
}
#: Those of them that do without torch.
_WITHOUT_TORCH = frozenset({"history", "inspect", "inventory", "outputs"})


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run one role to its end and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m cpr_trainer", description=__doc__.partition("\n")[0])
    roles = parser.add_subparsers(dest="role", required=True, metavar="ROLE")
    roles.add_parser(ROLE_TRAINER, help="train; all settings are in the environment")
    roles.add_parser(ROLE_SHARD, help="hold a part of the tables; all settings are in the environment")
    publishing = roles.add_parser(ROLE_PUBLISHER, help="publish models while the job trains")
    publishing.add_argument("--once", action="store_true", help="publish the newest model, and end")
    roles.add_parser(
        "calibrate", help="measure the cost of losses: reads an Experiment from stdin, writes reports to stdout"
    )
    roles.add_parser("evaluate", help="score held-out rows: reads an EvaluationRequest, writes an Evaluation")
    roles.add_parser("import", help="write an anchor: reads an ImportRequest, writes an Imported")
    roles.add_parser("inspect", help="inspect data: reads an InspectionRequest, writes an Inspection")
    roles.add_parser("inventory", help="list, verify or prune saves: reads a Request, writes the answer")
    roles.add_parser("history", help="read records of jobs: reads a HistoryRequest, writes a History")
    roles.add_parser(ROLE_RECORDER, help="store the record of a job that has ended")
    roles.add_parser("outputs", help="read last outputs of processes: reads an OutputRequest, writes Outputs")
    cleaning = roles.add_parser(ROLE_CLEANUP, help="delete all saves of a job")
    cleaning.add_argument("--keep-history", action="store_true", help="keep the job's history")
    cleaning.add_argument("--spare", action="append", default=[], help="the key of an anchor that stays")
    exporting = roles.add_parser("export", help="write the model of an anchor as files")
    exporting.add_argument("--anchor", required=True, help="the key of the anchor's manifest")
    exporting.add_argument("--format", choices=get_args(ExportFormat), default="safetensors", help="of the network")
    exporting.add_argument("--since", help="the key of another anchor: only the rows that changed after it are written")
    exporting.add_argument(
        "--to",
        required=True,
        help="the folder, made if it is not there; a URI; - writes an archive (tar) to stdout",
    )
    options = parser.parse_args(arguments)
    return run_role(options.role, partial(_run, options, environ), environ)


def run_role(role: str, work: Callable[[], int], environ: Mapping[str, str]) -> int:
    """Run a role with logs on stderr; return its exit code, or that of the error that ended it."""
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True
    )
    _LOG.info("starts as %s", role)
    try:
        return work()
    except TrainerError as error:
        _LOG.error("%s: %s", error.reason, error)
        return end_with(termination_file(environ), problem_of(error), exit_code(error))
    except Exception as error:  # noqa: BLE001 -- the outermost handler
        _LOG.exception("unexpected error")
        problem = Problem("Internal", f"{type(error).__name__}: {error}", "The pod's log has the trace; report it.")
        return end_with(termination_file(environ), problem, ExitCode.INTERNAL)


def threads(environ: Mapping[str, str]) -> int:
    """Return the number of torch's threads: OMP_NUM_THREADS, else one for each processor of this process."""
    stated = environ.get("OMP_NUM_THREADS", "")
    return int(stated) if stated.isdecimal() and int(stated) else processors()


def _run(options: argparse.Namespace, environ: Mapping[str, str]) -> int:
    match options.role:
        case "trainer":
            with _loading():
                from cpr_trainer.trainer.supervisor import run as train

            return train(Environment.read(environ), threads(environ))
        case "shard":
            with _loading():
                from cpr_trainer.shard.supervisor import run as serve

            return serve(Environment.read(environ))
        case role if role in _ANSWERING:
            with _loading() if role in _WITHOUT_TORCH else loading_torch(environ):
                answer = import_module(_ANSWERING[role]).run

            answer(environ, sys.stdin, sys.stdout)
        case "publisher":
            with loading_torch(environ):
                from cpr_trainer.publish.main import run as publish

            publish(environ, once=options.once)
        case "recorder":
            with _loading():
                from cpr_trainer.history.records import run_recorder

            run_recorder(environ)
        case "cleanup":
            with _loading():
                from cpr_trainer.inventory import clean_up

            return end_with(
                termination_file(environ),
                clean_up(environ, options.spare, keep_history=options.keep_history),
                ExitCode.OK,
            )
        case _:
            with loading_torch(environ):
                from cpr_trainer.export.main import run as export

            request = ExportRequest(options.anchor, options.format, options.since)
            export(environ, request, options.to, sys.stdout.buffer)
    return ExitCode.OK


@contextmanager
def _loading() -> Iterator[None]:
    """Load a role's code without garbage collection, which saves a tenth of the time."""
    gc.disable()
    yield
    gc.freeze()
    gc.enable()


@contextmanager
def loading_torch(environ: Mapping[str, str]) -> Iterator[None]:
    """Load torch, then the code of a role that computes with it."""
    with _loading():
        import torch

        torch.set_num_threads(threads(environ))
        yield
