"""Rules within `spec.data`, and between `spec.data` and `spec.model`."""

from __future__ import annotations

from cpr_contract.model import DENSE_FEATURES, MAX_PREDICTED
from cpr_operator.api.rules.rule import Rule

#: The characters of `spec.data.csv`, or those of the format.
_QUOTE = "has(self.csv.quote) ? self.csv.quote : self.format == 'CSV' ? '\"' : ''"
_DELIMITER = "has(self.csv.delimiter) ? self.csv.delimiter : self.format == 'CSV' ? ',' : '\\t'"
LABEL_VALUES = Rule(
    "/spec.data.columns.labelValues",
    "a label can have its values only once",
    "remove the duplicate",
    "",  # the API server enforces it by the list type `map`
)
OF_DATA = (
    LABEL_VALUES,
    Rule(
        "spec.data.columns/labelValues",
        "only labels have values",
        "name a column of spec.data.columns.labels",
        "!has(self.labelValues) || self.labelValues.all(v, v.label in self.labels)",
    ),
    Rule(
        "spec.data.columns.labelValues[]/positive",
        "a value cannot mean both 1 and 0",
        "remove it from positive or negative",
        "!self.positive.exists(v, v in self.negative)",
    ),
    Rule(
        "spec.data/samples",
        "state exactly one of epochs and samples, unless spec.data.follow is stated",
        "remove one of the two, or add one",
        "has(self.follow) || has(self.epochs) != has(self.samples)",
    ),
    Rule(
        "spec.data/samples",
        "Synthetic data needs samples and has no epochs",
        "state spec.data.samples instead of spec.data.epochs",
        "self.format != 'Synthetic' || !has(self.epochs)",
    ),
    Rule(
        "spec.data/uri",
        "Synthetic data is made by the trainers and has no uri",
        "remove spec.data.uri, or set spec.data.format to the format of the files there",
        "self.format != 'Synthetic' || !has(self.uri)",
    ),
    Rule(
        "spec.data/uri",
        "data in files needs a uri",
        "state the location of the files, as s3://bucket/key or file:///path",
        "self.format in ['Synthetic', 'Custom'] || has(self.uri)",
    ),
    Rule(
        "spec.data/uri",
        "Delta and Iceberg data is one table",
        "give the folder of the table, without a wildcard",
        "!(self.format in ['Delta', 'Iceberg']) || !has(self.uri) || !self.uri.contains('*')",
    ),
    Rule(
        "spec.data/version",
        "only Delta and Iceberg tables have versions",
        "remove spec.data.version, or set spec.data.format to Delta or Iceberg",
        "!has(self.version) || self.format in ['Delta', 'Iceberg']",
    ),
    Rule(
        "spec.data/entrypoint",
        "Custom data needs an entrypoint, and other formats have none",
        "state spec.data.entrypoint with the format Custom only",
        "(self.format == 'Custom') == has(self.entrypoint)",
    ),
    Rule(
        "spec.data/columns",
        "tables and Custom data need columns, and Criteo and Synthetic have none",
        "name the columns of a table in spec.data.columns, or remove it for Criteo and Synthetic",
        "(self.format in ['Criteo', 'Synthetic']) != has(self.columns)",
    ),
    Rule(
        "spec.data/shuffleRows",
        "a window has at least 1024 rows",
        "raise it, or set it to 0 to train rows in the order of the data",
        "self.shuffleRows == 0 || self.shuffleRows >= 1024",
    ),
    Rule(
        "spec.data/header",
        "only CSV and TSV files can lack a header",
        "remove spec.data.header",
        "self.header || self.format in ['CSV', 'TSV']",
    ),
    Rule(
        "spec.data/csv",
        "only CSV and TSV have a syntax of their own",
        "remove spec.data.csv, or set spec.data.format to CSV or TSV",
        "!has(self.csv) || self.format in ['CSV', 'TSV']",
    ),
    Rule(
        "spec.data/csv",
        "the delimiter is neither the quote nor the escape",
        "correct spec.data.csv.delimiter, quote and escape",
        f"!has(self.csv) || (({_QUOTE}) != ({_DELIMITER}) && (!has(self.csv.escape)"
        f" || self.csv.escape != ({_DELIMITER})))",
    ),
    Rule(
        "spec.data/csv",
        "a quote or an escape cannot separate ids",
        "correct spec.data.columns.separator, or spec.data.csv.quote and escape",
        "!has(self.csv) || !has(self.columns) || !has(self.columns.separator) || (self.columns.separator"
        f" != ({_QUOTE}) && (!has(self.csv.escape) || self.columns.separator != self.csv.escape))",
    ),
    Rule(
        "spec.data.csv/boolean",
        "booleans have one text of true and one of false",
        "state two different texts, or none",
        "self.boolean.size() == 0 || (self.boolean.size() == 2 && self.boolean[0] != self.boolean[1])",
    ),
    Rule(
        "spec.data.columns/labels",
        f"a model predicts 1 to {MAX_PREDICTED} columns",
        "name them in labels, or in targets if they are not 0 or 1",
        f"self.labels.size() + self.targets.size() >= 1 && self.labels.size() + self.targets.size() <= {MAX_PREDICTED}",
    ),
    Rule(
        "spec.data.columns/labels",
        "a column can be predicted only once",
        "remove the duplicate from labels and targets",
        "(self.labels + self.targets).all(n, (self.labels + self.targets).exists_one(m, m == n))",
    ),
    *(
        Rule(
            f"spec.data.columns/{field}",
            "a predicted column cannot be a feature",
            "remove it from the list, or correct spec.data.columns.labels and targets",
            f"!self.{field}.exists(name, name in self.labels || name in self.targets)",
        )
        for field in ("counts", "numbers", "categories")
    ),
    Rule(
        "spec.data.columns/weight",
        "a predicted column cannot be a weight",
        "name another column, or correct spec.data.columns.labels and targets",
        "!has(self.weight) || !(self.weight in self.labels || self.weight in self.targets)",
    ),
    Rule(
        "spec.data/columns",
        "only CSV and TSV have a separator of ids",
        "remove spec.data.columns.separator, because bags are lists in other formats",
        "!has(self.columns) || !has(self.columns.separator) || self.format in ['CSV', 'TSV']",
    ),
    Rule(
        "spec.data/store",
        "Custom data is read by code of its own",
        "remove spec.data.store, and give that code access by spec.trainers.template",
        "!has(self.store) || self.format != 'Custom'",
    ),
    Rule(
        "spec/data.store",
        "is for files in s3://, and neither spec.data.uri nor spec.evaluation.uri names any",
        "remove it, or give spec.data.uri as s3://bucket/key",
        "!has(self.data.store) || (has(self.data.uri) && self.data.uri.startsWith('s3://'))"
        " || (has(self.evaluation.uri) && self.evaluation.uri.startsWith('s3://'))",
    ),
)


# --- the columns that the model takes

#: True if a column has bags.
_POOLS = (
    "(has(self.model.features) ? self.model.features.exists(f, has(f.pooling))"
    " : self.model.tables.exists(t, has(t.pooling)))"
)
OF_INPUTS = (
    Rule(
        "spec/data",
        f"counts and numbers must be as many as spec.model.numeric, or {DENSE_FEATURES} at most if that is absent",
        "state in spec.model.numeric how many columns spec.data.columns.counts and numbers name together",
        "!has(self.data.columns) || (has(self.model.numeric)"
        " ? self.data.columns.counts.size() + self.data.columns.numbers.size() == self.model.numeric"
        f" : self.data.columns.counts.size() + self.data.columns.numbers.size() <= {DENSE_FEATURES})",
    ),
    Rule(
        "spec/data",
        f"Criteo and Synthetic data have {DENSE_FEATURES} numeric features",
        "remove spec.model.numeric, or train data with spec.data.columns",
        "!has(self.model.numeric) || has(self.data.columns)",
    ),
    Rule(
        "spec/data",
        "each table needs exactly one category, and with features there are none",
        "name as many spec.data.columns.categories as there are spec.model.tables, in the tables' order; with"
        " spec.model.features name none",
        "!has(self.data.columns) || self.data.columns.categories.size()"
        " == (has(self.model.features) ? 0 : self.model.tables.size())",
    ),
    Rule(
        "spec/data",
        "features need data with columns",
        "use a format of tables or Custom, or remove spec.model.features",
        "!has(self.model.features) || has(self.data.columns)",
    ),
    Rule(
        "spec/data",
        "a predicted column cannot be a feature",
        "correct the columns of spec.model.features, or spec.data.columns.labels and targets",
        "!has(self.model.features) || !has(self.data.columns) || !self.model.features.exists(f,"
        " f.column in self.data.columns.labels || f.column in self.data.columns.targets || (has(f.weights)"
        " && (f.weights in self.data.columns.labels || f.weights in self.data.columns.targets)))",
    ),
    Rule(
        "spec/data",
        "the DLRM predicts one label",
        "name exactly one of spec.data.columns.labels and no targets, or state spec.model.entrypoint",
        "!has(self.data.columns) || has(self.model.entrypoint)"
        " || (self.data.columns.labels.size() == 1 && self.data.columns.targets.size() == 0)",
    ),
    Rule(
        "spec/data.columns.integers",
        "only categories, or columns of features, have ids",
        "name columns of spec.data.columns.categories or of spec.model.features",
        "!has(self.data.columns) || sets.contains(has(self.model.features) ? self.model.features.map(f, f.column)"
        " : self.data.columns.categories, self.data.columns.integers)",
        skip_on_server="has(self.data.columns) && self.data.columns.integers.size()"
        " * (has(self.model.features) ? self.model.features.size() : self.data.columns.categories.size()) > 100000",
    ),
    Rule(
        "spec/data",
        "Synthetic data has texts as ids, which are hashed by CPR64 or are those of dynamic tables",
        "remove ids from spec.model.tables, set them to Dynamic, or train data in files",
        "self.data.format != 'Synthetic' || self.model.tables.all(t, t.ids in ['CPR64', 'Dynamic'])",
    ),
    Rule(
        "spec/data",
        "a table with pooling needs bags of ids",
        "use a format with lists, as Parquet, use CSV or TSV with spec.data.columns.separator, or remove pooling from"
        " spec.model.tables",
        f"!{_POOLS} || !(self.data.format in ['Criteo', 'CSV', 'TSV', 'Synthetic'])"
        " || (has(self.data.columns) && has(self.data.columns.separator))",
    ),
    Rule(
        "spec/data",
        "a separator of ids needs a table with pooling",
        "state pooling for the tables in spec.model.tables that take bags, or remove spec.data.columns.separator",
        f"!has(self.data.columns) || !has(self.data.columns.separator) || {_POOLS}",
    ),
)
