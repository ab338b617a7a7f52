"""Rules within `spec.data`."""

from __future__ import annotations

from cpr_contract.spec import MAX_PREDICTED
from cpr_operator.api.rules.rule import Rule

EPOCHS_OR_SAMPLES = Rule(
    "spec.data",
    "spec.data.samples",
    "state exactly one of epochs and samples",
    "remove one of the two, or add one",
    "has(self.epochs) != has(self.samples)",
)
SYNTHETIC = Rule(
    "spec.data",
    "spec.data.samples",
    "Synthetic data needs samples and has no epochs",
    "state spec.data.samples instead of spec.data.epochs",
    "self.format != 'Synthetic' || !has(self.epochs)",
)
SYNTHETIC_URI = Rule(
    "spec.data",
    "spec.data.uri",
    "Synthetic data is made by the trainers and has no uri",
    "remove spec.data.uri, or set spec.data.format to the format of the files there",
    "self.format != 'Synthetic' || !has(self.uri)",
)
FILES_URI = Rule(
    "spec.data",
    "spec.data.uri",
    "data in files needs a uri",
    "state the location of the files, as s3://bucket/key or file:///path",
    "self.format in ['Synthetic', 'Custom'] || has(self.uri)",
)
ENTRYPOINT = Rule(
    "spec.data",
    "spec.data.entrypoint",
    "Custom data needs an entrypoint, and other formats have none",
    "state spec.data.entrypoint with the format Custom only",
    "(self.format == 'Custom') == has(self.entrypoint)",
)
COLUMNS = Rule(
    "spec.data",
    "spec.data.columns",
    "CSV, TSV, Parquet and Custom need columns, and other formats have none",
    "state spec.data.columns with these formats only",
    "(self.format in ['CSV', 'TSV', 'Parquet', 'Custom']) == has(self.columns)",
)
HEADER = Rule(
    "spec.data",
    "spec.data.header",
    "only CSV and TSV files can lack a header",
    "remove spec.data.header",
    "self.header || self.format in ['CSV', 'TSV']",
)
PREDICTED = Rule(
    "spec.data.columns",
    "spec.data.columns.labels",
    f"a model predicts 1 to {MAX_PREDICTED} columns",
    "name them in labels, or in targets if they are not 0 or 1",
    f"self.labels.size() + self.targets.size() >= 1 && self.labels.size() + self.targets.size() <= {MAX_PREDICTED}",
)
PREDICTED_ONCE = Rule(
    "spec.data.columns",
    "spec.data.columns.labels",
    "a column can be predicted only once",
    "remove the duplicate from labels and targets",
    "(self.labels + self.targets).all(n, (self.labels + self.targets).exists_one(m, m == n))",
)
#: By the list that must not name a label or a target.
LABEL = {
    field: Rule(
        "spec.data.columns",
        f"spec.data.columns.{field}",
        "a predicted column cannot be a feature",
        "remove it from the list, or correct spec.data.columns.labels and targets",
        f"!self.{field}.exists(name, name in self.labels || name in self.targets)",
    )
    for field in ("counts", "numbers", "categories")
}
SEPARATOR = Rule(
    "spec.data",
    "spec.data.columns",
    "only CSV and TSV have a separator of ids",
    "remove spec.data.columns.separator, because bags are lists in Parquet and Custom data",
    "!has(self.columns) || !has(self.columns.separator) || self.format in ['CSV', 'TSV']",
)
RULES = (
    EPOCHS_OR_SAMPLES,
    SYNTHETIC,
    SYNTHETIC_URI,
    FILES_URI,
    ENTRYPOINT,
    COLUMNS,
    HEADER,
    PREDICTED,
    PREDICTED_ONCE,
    *LABEL.values(),
    SEPARATOR,
)
