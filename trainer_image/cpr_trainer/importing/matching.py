"""Matches the tensors of a model that was trained elsewhere with the tables and layers of a job: pure decisions.

A table NAME takes the tensor NAME, NAME.weight, or the one with a name that ends in .NAME.weight: the names of
`nn.EmbeddingBag` and TorchRec, under any wrapper. A parameter takes the tensor of its name, without prefixes of
wrappers. Layers of the built-in network also have their names in TorchRec (`torch_names.py`).

The rows of a dynamic table belong to the ids in a tensor near their own: in `_hash_zch_identities` of TorchRec's MPZCH,
or in NAME.ids; NAME.keys has their keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from cpr_contract.choices import Missing
from cpr_contract.manifests import SavedTensor
from cpr_contract.model import ModelSpec, TableSpec
from cpr_trainer.importing.row_keys import IDENTITIES, RowKeys
from cpr_trainer.importing.tensors import FLOATS, SourceError, StoredTensor
from cpr_trainer.importing.torch_names import as_layer, other_names

#: The suffix, after the name of a table, of row-wise Adagrad's sums for its rows.
SUM = ":sum"
#: Those of the ids or the keys of a dynamic table's rows, and of the counts of its entries.
IDS, KEYS, COUNT = ":ids", ":keys", ":count"
_SUFFIXES = (SUM, IDS, KEYS, COUNT)
#: The ends of the names of a table's tensors from dynamicemb: of vectors, and of ids.
_VALUES, _RAW_IDS = "_emb_values", "_emb_keys"
_MAX_SHOWN = 12
_WRAPPERS = (
    *("module.", "_dmp_wrapped_module.", "_orig_mod.", "_fsdp_wrapped_module."),
    *("model.", "state_dict.", "model_state_dict."),
)
_MAP = "--map TENSOR=NAME"
_NAME_IT = f"Name the right one by {_MAP}."

Found = Mapping[str, StoredTensor]


@dataclass(frozen=True, slots=True, eq=False)
class TableSource:
    """Table `place` of a job takes the rows of `weight`; `sums`, float [n] or [n, 1], is of row-wise Adagrad.

    `keys` are those of a dynamic table's rows.
    """

    place: int
    weight: StoredTensor
    sums: StoredTensor | None
    keys: RowKeys | None = None

    @property
    def tensors(self) -> tuple[StoredTensor, ...]:
        """All of its tensors."""
        keyed = () if self.keys is None else (self.keys.stored, self.keys.counts)
        return tuple(each for each in (self.weight, self.sums, *keyed) if each is not None)


@dataclass(frozen=True, slots=True, eq=False)
class Matches:
    """The tables of a model, in the job's order, and its parameters and buffers by their names in the job.

    `missing_tables` and `missing_layers` are not in the source, `unused` are tensors without a match.
    """

    tables: tuple[TableSource, ...]
    dense: Mapping[str, StoredTensor]
    missing_tables: tuple[str, ...]
    missing_layers: tuple[str, ...]
    unused: tuple[str, ...]


def match(
    found: Found,
    model: ModelSpec,
    dense: Sequence[SavedTensor],
    mapped: Sequence[tuple[str, str]],
    missing: Missing,
) -> Matches:
    """Return the tensor of each table, and of each of the parameters and buffers `dense`; `mapped` states some of them.

    Raises SourceError for a tensor that does not fit, and, if `missing` is Fail, for a missing one.
    """
    table_names = [table.name for table in model.tables]
    targets = (
        *table_names,
        *(name + suffix for name in table_names for suffix in _SUFFIXES),
        *(each.name for each in dense),
    )
    stated = _stated(found, mapped, targets)
    taken = {tensor.name for tensor in stated.values()}
    sources = {table.name: _table_source(found, model, place, stated) for place, table in enumerate(model.tables)}
    tables = tuple(filter(None, sources.values()))
    no_tables = tuple(name for name, source in sources.items() if source is None)
    known, no_layers = {tensor.name for each in tables for tensor in each.tensors}, list[str]()
    layers = dict[str, StoredTensor]()
    for each in dense:
        layer = stated.get(each.name)
        if layer is None:  # The tensor of its name, otherwise that of its name behind a wrapper's.
            fitting = [name for name in found if name not in taken | known and each.name in _unwrapped(name)]
            layer = found[each.name] if each.name in fitting else _only(fitting, each.name, found)
        if layer is None and model.entrypoint is None:
            layer = _elsewhere(found, each, model, taken | known)
        if layer is not None and layer.shape == each.shape and not isinstance(layer.dtype, str):
            layers[each.name] = layer
        else:
            other = "" if layer is None else f" (but {layer.dtype} {list(layer.shape)})"
            no_layers.append(f"{each.name} {list(each.shape)}{other}")
    known.update(layer.name for layer in layers.values())
    unused = tuple(tensor.description for name, tensor in found.items() if name not in known)
    unmatched = (*(f"table {name}" for name in no_tables), *no_layers)
    if unmatched and (missing == "Fail" or not tables):
        or_initialise = "; --missing Initialise starts missing ones from first values" if tables else ""
        raise SourceError(
            f"The source has no {_some(unmatched)}; it has {_some(unused) if unused else 'nothing else'}.",
            f"Name them by {_MAP}{or_initialise}. --dense Initialise leaves the whole dense network out.",
        )
    return Matches(tables, layers, no_tables, tuple(no_layers), unused)


def _elsewhere(found: Found, layer: SavedTensor, model: ModelSpec, taken: Collection[str]) -> StoredTensor | None:
    """Return the tensor of a layer of the built-in network by its name in another system."""
    for other in other_names(layer.name, model):
        fitting = [name for name in found if name not in taken and other in _unwrapped(name)]
        if (tensor := _only(fitting, layer.name, found)) is not None:
            return as_layer(tensor, layer, model)
    return None


def _stated(found: Found, mapped: Sequence[tuple[str, str]], targets: Sequence[str]) -> dict[str, StoredTensor]:
    """Return the tensors that the user names, by the name of their table or layer."""
    stated = dict[str, StoredTensor]()
    for name, target in mapped:
        if target not in targets:
            raise SourceError(
                f"--map {name}={target}: the job has no table and no layer {target}.", f"It has {_some(targets)}."
            )
        if target in stated:
            raise SourceError(f"--map names two tensors for {target}.", "Name one.")
        fitting = [name] if name in found else [each for each in found if each.endswith(f".{name}")]
        if len(fitting) != 1:
            how = "there is no such tensor" if not fitting else f"these end so: {_some(fitting)}"
            every = _some(tensor.description for tensor in found.values())
            raise SourceError(f"--map {name}={target}: {how}.", f"Name one of these, or how one ends: {every}.")
        stated[target] = found[fitting[0]]
    return stated


def _table_source(found: Found, model: ModelSpec, place: int, stated: Found) -> TableSource | None:
    """Return the tensors of a table; None if the source has no rows of it. Raises SourceError for unsuitable ones."""
    table, weight = model.tables[place], stated.get(model.tables[place].name)
    if weight is None:
        full, taken = f"{table.name}.weight", {tensor.name for tensor in stated.values()}
        names = {table.name, full, f"{table.name}{_VALUES}"}
        fitting = [name for name in found if name not in taken and (name in names or name.endswith(f".{full}"))]
        weight = _only(fitting, f"table {table.name}", found)
    further = {suffix: stated.get(table.name + suffix) for suffix in _SUFFIXES}
    if weight is None:
        if (tensor := next(filter(None, further.values()), None)) is not None:
            raise SourceError(f"{tensor.name} is for the rows of table {table.name}, which is not there.", _NAME_IT)
        return None
    _check_weight(table, model.table_dims[place], weight)
    if (sums := further[SUM]) is not None:
        _check_sums(table, model.table_optimizers[place].kind, weight, sums)
    return TableSource(place, weight, sums, _row_keys(table, weight, further, found))


def _unwrapped(name: str) -> Iterator[str]:
    """Yield a name, and the name without one wrapper, two, and so on."""
    yield name
    for wrapper in _WRAPPERS:
        if name.startswith(wrapper):
            yield from _unwrapped(name.removeprefix(wrapper))


def _only(names: Sequence[str], target: str, found: Found) -> StoredTensor | None:
    if len(names) > 1:
        raise SourceError(f"Several tensors have the name of {target}: {_some(names)}.", _NAME_IT)
    return found[names[0]] if names else None


def _row_keys(
    table: TableSpec, weight: StoredTensor, stated: Mapping[str, StoredTensor | None], found: Found
) -> RowKeys | None:
    """Return the ids of a dynamic table's rows: those stated, or else by names that follow from that of `weight`.

    Raises SourceError for a table that is not dynamic, if there are any.
    """
    ids, keys, counts = (stated[suffix] for suffix in (IDS, KEYS, COUNT))
    if ids is None and keys is None:
        full = weight.name.removesuffix(".weight")
        raw = f"{full.removesuffix(_VALUES)}{_RAW_IDS}" if full.endswith(_VALUES) else f"{full}.ids"
        slots = f"{full.rpartition('.')[2]}.{IDENTITIES}"
        near = [name for name in found if name in {raw, slots} or name.endswith(f".{slots}")]
        ids = _only(near, f"the ids of table {table.name}", found)
        keys = found.get(f"{full}.keys")
    if table.dynamic is not None:
        return RowKeys.of(table, weight, ids, keys, counts)
    for tensor in (ids, keys, counts):
        if tensor is not None:
            raise SourceError(
                f"{tensor.name} is of rows that belong to ids as they come, and table {table.name} has the ids "
                f"{table.ids}.",
                f"Set its ids in spec.model.tables to Dynamic, or leave {tensor.name} out of the source.",
            )
    return None


def _check_weight(table: TableSpec, dim: int, weight: StoredTensor) -> None:
    """Raise SourceError if a tensor does not have the rows of a table."""
    columns = 2
    if len(weight.shape) != columns or not all(weight.shape):
        raise SourceError(
            f"{weight.description} is for table {table.name}, and has no rows of vectors.",
            f"Name another one by {_MAP}.",
        )
    if weight.shape[1] != dim:
        raise SourceError(
            f"{weight.description} has vectors of {weight.shape[1]} values, and table {table.name} of {dim}.",
            f"Set the dim of {table.name} in spec.model.tables to {weight.shape[1]}, or name another one by {_MAP}.",
        )
    _check_floats(weight)
    if table.ids == "CPR64":
        raise SourceError(
            f"Table {table.name} has hashed ids (CPR64), so its rows are other ids' than those of {weight.name}, which "
            "was trained elsewhere.",
            f"Set the ids of {table.name} in spec.model.tables to RowNumber if ids are numbers of rows, to Vocabulary "
            "if a file has the row of each, or to the hash that it was trained with (XXH64, Murmur3).",
        )


def _check_sums(table: TableSpec, optimizer: str, weight: StoredTensor, sums: StoredTensor) -> None:
    """Raise SourceError if a tensor does not have row-wise Adagrad's sums for a table."""
    if optimizer != "RowWiseAdagrad":
        raise SourceError(
            f"Table {table.name} is trained by {optimizer}, and {SUM} is for RowWiseAdagrad.",
            f"Leave {sums.name} out, or set the optimizer of {table.name} to RowWiseAdagrad.",
        )
    rows = weight.shape[0]
    if sums.shape not in {(rows,), (rows, 1)}:
        raise SourceError(f"{sums.description} has no number for each of the {rows} rows of {weight.name}.", _NAME_IT)
    _check_floats(sums)


def _check_floats(tensor: StoredTensor) -> None:
    if tensor.dtype not in FLOATS:
        raise SourceError(
            f"{tensor.name} is of {tensor.dtype}, not one of {', '.join(FLOATS.values())}.", "Save it as float32."
        )


def _some(names: Iterable[str]) -> str:
    every = tuple(names)
    return ", ".join(every[:_MAX_SHOWN]) + (f", ... ({len(every)} in all)" if len(every) > _MAX_SHOWN else "")
