"""`python -m cpr_trainer evaluate`: scores a saved model on the rows that its job holds out, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TextIO

import numpy as np
import torch
from torch import Tensor, nn

from cpr_contract.codec import to_json
from cpr_contract.manifests import DenseManifest
from cpr_contract.pinned_data import DataManifest, data_key
from cpr_contract.requests import Evaluation, EvaluationRequest
from cpr_contract.spec import JobSpec
from cpr_trainer.arrays import Floats, Ints
from cpr_trainer.checkpoint.format.records import read_fitting_anchor, read_frozen, vocabularies_of
from cpr_trainer.checkpoint.restore.dense_loader import read_tensors
from cpr_trainer.checkpoint.restore.loading import load_anchor
from cpr_trainer.data.dataset import Batch, Dataset
from cpr_trainer.data.files import Index
from cpr_trainer.data.open import Find, evaluation_data, evaluation_rows, files_of, indices_of_manifest, open_evaluation
from cpr_trainer.embedding.access import AnyAccess, Rows, as_rows, find_access
from cpr_trainer.embedding.bfloat16 import as_floats
from cpr_trainer.embedding.dynamic.pages import first_of_runs
from cpr_trainer.embedding.placement import Placement, layout_hash
from cpr_trainer.embedding.unique_rows import UniqueRows
from cpr_trainer.errors import DataError
from cpr_trainer.evaluation import ProgressiveValidation, first_of
from cpr_trainer.group_scores import ByGroup, Grouped
from cpr_trainer.model.entrypoint import set_training, start
from cpr_trainer.model.replica import DenseReplica
from cpr_trainer.runtime import BadSpecError, data_access, read_job, read_request, store_access
from cpr_trainer.store import Store, open_store
from cprjob_serving.hashes import U64


def run(environ: Mapping[str, str], source: TextIO, sink: TextIO) -> None:
    """Read an `EvaluationRequest` from `source` and write the `Evaluation` to `sink`. Raises TrainerError."""
    job = read_job(environ)
    request = read_request(EvaluationRequest, source, "evaluate")
    store = open_store(job.snapshots.store, *store_access(environ))

    separate = evaluation_data(job)
    data = separate or job.data
    if job.data.follow is not None and separate is None:
        raise BadSpecError(
            "The job follows its data, so it holds no rows out.",
            "State evaluation.uri in a new job; progressive validation has scored every sample of this one.",
        )

    def frozen(find: Find) -> Sequence[Index]:
        """Return the frozen files of the job, if they are of the same data."""
        key = data_key(request.anchor.partition("/")[0], evaluates=separate is not None)
        found = read_frozen(store, DataManifest, key)
        same = found is not None and (found.uri == data.uri or found.uris == (data.entrypoint,))
        return indices_of_manifest(found) if found is not None and same else find()

    files = files_of(job, store_access(environ), data_access(environ))
    dataset = open_evaluation(job, files, frozen, lambda _: vocabularies_of(store, request.anchor, job.model))
    print(to_json(evaluate(job, dataset, store, request.anchor)), file=sink, flush=True)


@torch.no_grad()
def evaluate(job: JobSpec, dataset: Dataset, store: Store, anchor_key: str) -> Evaluation:
    """Score the model of an anchor on the held-out rows. dataset: the one that they are of.

    Takes the memory of one shard, and of the rows that the held-out samples need. Raises BadSpecError if the job holds
    nothing out, DataError, LayoutError if the anchor has other tables or ids, ModelError if it has another network,
    DamagedError, StoreError.
    """
    if not evaluation_rows(job, dataset.layout.rows):
        raise BadSpecError("The job holds no rows out.", "Set data.holdOut or evaluation.uri before it starts.")
    manifest = read_fitting_anchor(store, anchor_key, layout_hash(job.model), job.model.table_ids)
    replica = DenseReplica(job.model, job.data.seed)
    replica.load(read_tensors(store, manifest))
    placement = Placement.of(job.model, len(manifest.shards))
    accesses = [find_access(placement, batch.ids).unique for batch in _batches(job, dataset)]
    needed = [NeededRows.of(accesses, band, job.model.band_dims[band]) for band in range(placement.table_bands)]
    _read(job, store, manifest, placement, needed)

    def fetch(rows: UniqueRows) -> Rows:
        return as_rows(tuple(torch.from_numpy(of_band.vectors[of_band.find(rows)]) for of_band in needed))

    found: list[tuple[Batch, Tensor]] = []
    scores = score_held_out(replica.model, job, dataset, placement, fetch, lambda *each: found.append(each))
    by_group = ByGroup(None, (), None)
    batches = [(each.labels, each.groups, each.sample_weights) for each, _ in found if each.groups is not None]
    if batches:
        by_group = Grouped.of(batches).scores(torch.cat([first_of(logits) for _, logits in found]).numpy())
    if not scores.samples:
        raise DataError("No held-out row is a sample.", "Inspect the data with `cprjob data inspect`.")
    return Evaluation(
        manifest.step,
        scores.samples,
        scores.auc(),
        scores.log_loss(),
        scores.metrics(),
        scores.normalised_entropy(),
        scores.calibration(),
        by_group.gauc,
        by_group.groups,
        by_group.rest,
    )


@torch.no_grad()
def score_held_out(  # noqa: PLR0913, PLR0917 -- a model is in two places, and so is its data
    network: nn.Module,
    job: JobSpec,
    dataset: Dataset,
    placement: Placement,
    fetch: Callable[[UniqueRows], Rows],
    note: Callable[[Batch, Tensor], None] = lambda *_: None,
) -> ProgressiveValidation:
    """Score the held-out samples, in float32 and in the evaluation mode that it leaves `network` in.

    fetch: returns the vectors, float32, of some rows. note: gets the logits of each batch. Raises DataError,
    DivergedError.
    """
    set_training(network, on=False)
    scores = ProgressiveValidation.of(0, job.model, network)
    for batch in _batches(job, dataset):
        access = find_access(placement, batch.ids)
        logits = logits_of(network, batch, access, fetch(access.unique))
        scores.add_held_out(logits, batch.labels, batch.sample_weights)
        note(batch, logits)
    scores.merge(scores.take_delta())
    return scores


def logits_of(network: nn.Module, batch: Batch, access: AnyAccess, vectors: Rows) -> Tensor:
    """Return the logits of a batch, [n] or [n, L]. vectors: float32, of the unique rows of `access`."""
    begun = start(network, torch.from_numpy(batch.dense), batch.labels.shape[1:])
    return begun(access.embeddings(vectors))


def _batches(job: JobSpec, dataset: Dataset) -> Iterator[Batch]:
    """Yield the held-out samples, in the order of the data."""
    rows, size = evaluation_rows(job, dataset.layout.rows), job.data.batch_size
    for first in range(rows.start, rows.stop, size):
        yield dataset.take(np.arange(first, min(first + size, rows.stop)))


@dataclass(frozen=True, slots=True, eq=False)
class NeededRows:
    """The rows of a band that some batches need, each once. vectors: float32 [k, D].

    places: int64 [k], ascending. names: uint64 [k], ascending in each place: their numbers or keys.
    """

    band: int
    places: Ints
    names: U64
    vectors: Floats

    @classmethod
    def of(cls, accesses: Sequence[UniqueRows], band: int, dim: int) -> Self:
        """Return those of all batches."""
        places = np.concatenate([rows.of_band(rows.places, band) for rows in accesses])
        names = np.concatenate([rows.of_band(rows.numbers, band) for rows in accesses]).view(np.uint64)
        order = np.lexsort((names, places))
        order = order[first_of_runs(places[order]) | first_of_runs(names[order])]
        return cls(band, places[order], names[order], np.empty((len(order), dim), np.float32))

    def find(self, rows: UniqueRows) -> Ints:
        """Return where some of the rows stand, int64 [m]."""
        places, names = (rows.of_band(each, self.band) for each in (rows.places, rows.numbers.view(np.uint64)))
        found = np.searchsorted(self.places, places)
        # Keys of a dynamic table on a shard share a place.
        shared = np.flatnonzero(self.names[found] != names)
        for place in np.unique(places[shared]):
            mine = shared[places[shared] == place]
            first, last = np.searchsorted(self.places, (place, place + 1))
            found[mine] = first + np.searchsorted(self.names[first:last], names[mine])
        return found


def _read(
    job: JobSpec, store: Store, manifest: DenseManifest, placement: Placement, needed: Sequence[NeededRows]
) -> None:
    """Read the saved vectors of rows. Dynamic tables are read as of the step of the anchor."""
    for index in range(placement.shards):
        local = load_anchor(store, job, manifest, placement, index)
        dynamic = {each.band: each for each in local.dynamic}
        for rows in needed:
            cell = index * placement.bands + rows.band
            first, last = placement.cells[cell : cell + 2]
            here, segment = slice(*np.searchsorted(rows.places, (first, last))), local.arena.segments[rows.band]
            places = rows.places[here] - first
            if rows.band in dynamic:
                band = dynamic[rows.band]
                rows.vectors[here] = as_floats(band.read(band.pages.locate(rows.names[here], places), manifest.step))
            else:
                rows.vectors[here] = segment.read(places)
