"""The choice of the label among the columns of data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpr_contract.requests import MAX_VALUES, ColumnStats
from cpr_operator.cli.command_errors import OptionError
from cpr_operator.cli.proposal.column_names import LABELS, OUTCOMES, RATINGS, joined
from cpr_operator.cli.proposal.kinds import is_fractional, is_integer, is_numeric

#: The most values of a side of a label (`data.columns.labelValues`).
_MOST_VALUES = 16
#: A rating from this portion of the highest one on is a 1: four of five stars, eight of ten points.
_GOOD = 0.8
_POSITIVE = frozenset({"1", "true", "t", "yes", "y", "click", "clicked", "positive", "pos", "buy", "bought"})
_NEGATIVE = frozenset({"0", "-1", "false", "f", "no", "n", "none", "negative", "neg", "noclick", "skip", "skipped"})
_OPTION = "name it by --label NAME, or by --label NAME=VALUE,... if some of its values mean 1"


@dataclass(frozen=True, slots=True)
class Label:
    """The label. `positive` and `negative` are the texts of 1 and 0; empty if the column has 0 and 1."""

    column: str
    positive: tuple[str, ...]
    negative: tuple[str, ...]
    reason: str
    missing: int = 0


def choose_label(columns: Sequence[ColumnStats], option: str | None) -> Label:
    """Return the label: the column of the option, or the only one that its name or its values show.

    Raises OptionError, which lists the candidates, if there is none or more than one.
    """
    if option is not None:
        return _stated(columns, option)
    for names in (LABELS, OUTCOMES):
        found = [each for each in columns if joined(each.name) in names]
        usable = [label for each in found if (label := _binary(each, "its name")) is not None]
        if len(usable) > 1:
            raise OptionError(_candidates(columns, [each.column for each in usable]))
        if usable:
            return usable[0]
        if found and names is LABELS:
            raise OptionError(_unusable(found[0]))
    rated = [each for each in columns if joined(each.name) in RATINGS]
    if len(rated) == 1:
        return _rating(rated[0])
    binary = [label for each in columns if (label := _binary(each, "the only column of two values")) is not None]
    if len(rated) > 1 or len(binary) != 1:
        raise OptionError(_candidates(columns, [each.name for each in rated] or [each.column for each in binary]))
    return binary[0]


def _candidates(columns: Sequence[ColumnStats], equal: Sequence[str]) -> str:
    """Return a message with the columns that are equally likely; without any, with those of few values."""
    if equal:
        return f"columns {', '.join(equal)} may each be the label; {_OPTION}"
    few = [f"{each.name} ({_shown(each)})" for each in columns if 1 < len(_values(each)) <= _MOST_VALUES]
    listed = f"those with few values are {', '.join(few)}" if few else "none has few values"
    return f"no column is named as a label or has 0 and 1 alone; {listed}; {_OPTION}"


def _stated(columns: Sequence[ColumnStats], option: str) -> Label:
    named = {each.name: each for each in columns}
    name, _, texts = option.rpartition("=") if option not in named else (option, "", "")
    if (column := named.get(name or option)) is None:
        raise OptionError(f"--label {option}: there is no such column; the columns are {', '.join(named)}")
    if not texts:
        label = _binary(column, "--label")
        if label is None and joined(column.name) in RATINGS:
            label = _rating(column)
        if label is None:
            raise OptionError(_unusable(column))
        return label
    positive, values = tuple(texts.split(",")), _values(column)
    if unknown := [each for each in positive if each not in values]:
        raise OptionError(
            f"--label {option}: no cell of {name} is {', '.join(unknown)}; its values are {_shown(column)}"
        )
    negative = tuple(each for each in values if each not in positive)
    if not values or not negative or max(len(positive), len(negative)) > _MOST_VALUES or is_fractional(column.kind):
        raise OptionError(_unusable(column))
    return Label(name, positive, negative, f"--label; {_share(column, positive)}", column.missing)


def _binary(column: ColumnStats, cause: str) -> Label | None:
    """Return a column of two values as the label; None if it has others, or it is not clear which one means 1."""
    values = _values(column)
    if column.kind == "bool" and values:
        return Label(column.name, (), (), f"{cause}; {_share(column, ('true',))}", column.missing)
    if is_numeric(column.kind) and (column.lowest, column.highest, len(values)) == (0, 1, 2):
        ones = tuple(each for each in values if float(each) == 1)
        return Label(column.name, (), (), f"{cause}; {_share(column, ones)}", column.missing)
    positive = tuple(each for each in values if each.lower() in _POSITIVE)
    negative = tuple(each for each in values if each.lower() in _NEGATIVE)
    if not positive or not negative or len(positive) + len(negative) < len(values) or is_fractional(column.kind):
        return None
    return Label(column.name, positive, negative, f"{cause}; {_share(column, positive)}", column.missing)


def _rating(column: ColumnStats) -> Label:
    """Return a rating as the label, with a threshold. Raises OptionError if the manifest cannot state it."""
    values = _values(column)
    # Only text and integers have values that a manifest can state.
    if column.highest is None or not values or not (is_integer(column.kind) or column.kind == "number"):
        raise OptionError(_unusable(column))
    ordered = sorted(values, key=float)
    least = _GOOD * column.highest
    positive = tuple(each for each in ordered if float(each) >= least)
    negative = tuple(each for each in ordered if float(each) < least)
    if not negative or max(len(positive), len(negative)) > _MOST_VALUES:
        raise OptionError(_unusable(column))
    reason = f"a rating: {positive[0]} and more, from {_GOOD:.0%} of the highest on, mean 1; {_share(column, positive)}"
    return Label(column.name, positive, negative, reason, column.missing)


def _unusable(column: ColumnStats) -> str:
    return (
        f"column {column.name} cannot be the label as it is: {_shown(column)}. The DLRM predicts 0 or 1. State up to"
        f" {_MOST_VALUES} values that mean 1 by --label {column.name}=VALUE,..., or write a column of 0 and 1."
        " A network of your own predicts numbers (data.columns.targets and model.entrypoint)"
    )


def _values(column: ColumnStats) -> tuple[str, ...]:
    """Return all values of a column; none of lists, and of columns with too many to list."""
    few = column.bag_mean is None and (column.distinct or 0) <= MAX_VALUES
    return tuple(value for value, _ in column.values) if few else ()


def _shown(column: ColumnStats) -> str:
    values = _values(column)
    if not values:
        return f"its type is {column.kind}" if column.distinct is None else f"it has {column.distinct:,} values"
    return f"its values are {', '.join(sorted(values)[:_MOST_VALUES])}"


def _share(column: ColumnStats, positive: Sequence[str]) -> str:
    counts = dict(column.values)
    return f"{sum(counts.get(each, 0) for each in positive) / max(1, sum(counts.values())):.1%} of rows are 1"
