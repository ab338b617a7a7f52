"""Rules of data, columns and features: for each a document that keeps it and one that breaks it."""

from __future__ import annotations

from support.documents import (
    ABSENT,
    BAG,
    BUILT,
    COLUMNS,
    CRITEO,
    CSV,
    DELTA,
    DYNAMIC,
    FEATURES,
    LAKE,
    LISTED,
    NUMBERED,
    OWN_MODEL,
    PARQUET,
    SEPARATED,
    Case,
    Edits,
)

THIRTEEN = [str(number) for number in range(1, 14)]
BAGS: Edits = {"spec.model.features.1.pooling": "Sum"}
SEQUENCE: Edits = {"spec.model.features.1.pooling": "None"}
TEXTS: Edits = {"spec.data.columns.labelValues": [{"label": "click", "positive": ["yes"], "negative": ["no", ""]}]}
WORTH: Edits = {"spec.data.columns.weight": "worth"}
SEVEN, EIGHT = ([f"bought_{number}" for number in range(count)] for count in (7, 8))

DATA = (
    Case(
        "spec.data.columns.labelValues",
        CSV | TEXTS,
        CSV | TEXTS | {"spec.data.columns.labelValues.0.label": "price"},
        "only labels have values",
    ),
    Case(
        "spec.data.columns.labelValues[0].positive",
        CSV | TEXTS,
        CSV | TEXTS | {"spec.data.columns.labelValues.0.negative": ["no", "yes"]},
        "cannot mean both 1 and 0",
    ),
    Case(
        "spec.data.columns.labelValues",
        CSV | TEXTS,
        CSV | {"spec.data.columns.labelValues": 2 * TEXTS["spec.data.columns.labelValues"]},
    ),
    Case("spec.data.shuffleRows", {"spec.data.shuffleRows": 0}, {"spec.data.shuffleRows": 1023}, "at least 1024 rows"),
    Case("spec.data.columns.weight", CSV | WORTH, CSV | WORTH | {"spec.data.columns.weight": "click"}, "be a weight"),
    Case("spec.data.samples", CRITEO, {**CRITEO, "spec.data.samples": 10}, "exactly one of epochs and samples"),
    Case(
        "spec.data.samples",
        {**CRITEO, "spec.data.epochs": ABSENT, "spec.data.samples": 10},
        {"spec.data.samples": ABSENT},
        "exactly one of epochs and samples",
    ),
    Case(
        "spec.data.samples",
        {"spec.data.samples": 1},
        {"spec.data.samples": ABSENT, "spec.data.epochs": 1},
        "Synthetic data needs samples",
    ),
    Case("spec.data.uri", CRITEO, {"spec.data.uri": "s3://clicks/day"}, "Synthetic data is made by the trainers"),
    Case("spec.data.uri", CRITEO, CRITEO | {"spec.data.uri": ABSENT}, "data in files needs a uri"),
    Case("spec.data.uri", PARQUET, PARQUET | {"spec.data.uri": ABSENT}, "data in files needs a uri"),
    Case("spec.data.uri", DELTA, DELTA | {"spec.data.uri": "s3://lake/*/"}, "is one table"),
    Case(
        "spec.data.version",
        DELTA | {"spec.data.format": "Iceberg", "spec.data.version": 4815593388672528517},
        PARQUET | {"spec.data.version": 3},
        "only Delta and Iceberg tables have versions",
    ),
    Case(
        "spec.data.entrypoint",
        PARQUET | {"spec.data.format": "Custom", "spec.data.entrypoint": "mine:Rows", "spec.data.uri": ABSENT},
        PARQUET | {"spec.data.format": "Custom"},
        "Custom data needs an entrypoint",
    ),
    Case(
        "spec.data.entrypoint",
        PARQUET | BAG | {"spec.data.format": "Custom", "spec.data.entrypoint": "mine:Rows"},
        PARQUET | {"spec.data.entrypoint": "mine:Rows"},
        "other formats have none",
    ),
    Case("spec.data.columns", PARQUET, PARQUET | {"spec.data.columns": ABSENT}, "tables and Custom data need columns"),
    Case("spec.data.columns", CSV, CRITEO | {"spec.data.columns": COLUMNS}, "Criteo and Synthetic have none"),
    Case(
        "spec.data.header",
        CSV | {"spec.data.header": False},
        PARQUET | {"spec.data.header": False},
        "only CSV and TSV files can lack a header",
    ),
    Case(
        "spec.data.csv", CSV | {"spec.data.csv": {}}, PARQUET | {"spec.data.csv": {}}, "only CSV and TSV have a syntax"
    ),
    Case(
        "spec.data.csv",
        CSV | {"spec.data.csv": {"delimiter": "\x01", "quote": "", "escape": "\\"}},
        CSV | {"spec.data.csv": {"quote": ","}},
        "the delimiter is neither the quote nor the escape",
    ),
    Case(
        "spec.data.csv",
        CSV | BAG | SEPARATED | {"spec.data.csv": {"escape": "\\"}},
        CSV | BAG | SEPARATED | {"spec.data.csv": {"escape": "|"}},
        "a quote or an escape cannot separate ids",
    ),
    Case(
        "spec.data.csv.boolean",
        CSV | {"spec.data.csv.boolean": ["True", "False"]},
        CSV | {"spec.data.csv.boolean": ["True"]},
        "one text of true and one of false",
    ),
    Case(
        "spec.data",
        CSV | {"spec.data.columns.counts": THIRTEEN, "spec.data.columns.numbers": ABSENT},
        CSV | {"spec.data.columns.counts": THIRTEEN},
        "or 13 at most if that is absent",
    ),
    Case(
        "spec.data",
        CSV | {"spec.data.columns.counts": THIRTEEN, "spec.model.numeric": 14},
        CSV | {"spec.data.columns.counts": THIRTEEN, "spec.model.numeric": 13},
        "must be as many as spec.model.numeric",
    ),
    Case("spec.data", CSV | {"spec.model.numeric": 2}, {"spec.model.numeric": 13}, "have 13 numeric features"),
    Case("spec.data.store", CRITEO | LAKE, CRITEO | LAKE | {"spec.data.uri": "/data/day"}, "is for files in s3://"),
    Case(
        "spec.data.store",
        CRITEO | LAKE | {"spec.data.uri": "/data/day", "spec.evaluation.uri": "s3://clicks/test"},
        LAKE,
        "is for files in s3://",
    ),
    Case(
        "spec.data.store",
        PARQUET | LAKE,
        PARQUET | LAKE | {"spec.data.format": "Custom", "spec.data.entrypoint": "clicks:Clicks"},
        "is read by code of its own",
    ),
    Case("spec.model.features", FEATURES, FEATURES | {"spec.model.features.1.name": "one"}),
    Case(
        "spec.model.features",
        FEATURES | {"spec.model.features.1.table": "b"},
        FEATURES | {"spec.model.features.1.table": "c"},
        "a feature names a table that does not exist",
    ),
    Case(
        "spec.model.features",
        FEATURES | BAGS,
        FEATURES | BAGS | {"spec.model.tables.0.pooling": "Sum"},
        "with features, tables have no pooling",
    ),
    Case("spec.model.features", FEATURES | SEQUENCE | OWN_MODEL, FEATURES | SEQUENCE, "the DLRM takes no sequences"),
    Case(
        "spec.model.features[1].maxLength",
        FEATURES | BAGS | {"spec.model.features.1.maxLength": 50},
        FEATURES | {"spec.model.features.1.maxLength": 50},
        "only bags and sequences have a length",
    ),
    Case(
        "spec.model.features[1].weights",
        FEATURES | BAGS | {"spec.model.features.1.weights": "w"},
        FEATURES | {"spec.model.features.1.weights": "w"},
        "only sums and sequences take weights",
    ),
    Case(
        "spec.model.features[1].weights",
        FEATURES | OWN_MODEL | SEQUENCE | {"spec.model.features.1.weights": "w"},
        FEATURES | {"spec.model.features.1.pooling": "Mean", "spec.model.features.1.weights": "w"},
        "only sums and sequences take weights",
    ),
    Case(
        "spec.data",
        FEATURES,
        FEATURES | {"spec.data.columns.categories": ["user", "item"]},
        "with features there are none",
    ),
    Case("spec.data", FEATURES, LISTED | CRITEO, "features need data with columns"),
    Case(
        "spec.data",
        FEATURES,
        FEATURES | {"spec.model.features.1.column": "click"},
        "a predicted column cannot be a feature",
    ),
    Case(
        "spec.data",
        FEATURES | BAGS | {"spec.model.features.1.weights": "price"},
        FEATURES | BAGS | {"spec.model.features.1.weights": "click"},
        "a predicted column cannot be a feature",
    ),
    Case(
        "spec.data",
        FEATURES | BAGS | {"spec.data.format": "CSV"} | SEPARATED,
        FEATURES | BAGS | {"spec.data.format": "CSV"},
        "a table with pooling needs bags of ids",
    ),
    Case(
        "spec.data",
        FEATURES | BAGS | {"spec.data.format": "TSV"} | SEPARATED,
        FEATURES | {"spec.data.format": "TSV"} | SEPARATED,
        "a separator of ids needs a table with pooling",
    ),
    Case(
        "spec.data.columns.labels", CSV, CSV | {"spec.data.columns.labels": ABSENT}, "a model predicts 1 to 8 columns"
    ),
    Case(
        "spec.data.columns.labels",
        CSV | OWN_MODEL | {"spec.data.columns.labels": SEVEN, "spec.data.columns.targets": ["dwell"]},
        CSV | OWN_MODEL | {"spec.data.columns.labels": EIGHT, "spec.data.columns.targets": ["dwell"]},
        "a model predicts 1 to 8 columns",
    ),
    Case(
        "spec.data.columns.labels",
        CSV | OWN_MODEL | {"spec.data.columns.labels": ["click", "buy"]},
        CSV | OWN_MODEL | {"spec.data.columns.labels": ["click", "click"]},
        "a column can be predicted only once",
    ),
    Case(
        "spec.data.columns.labels",
        CSV | OWN_MODEL | {"spec.data.columns.targets": ["dwell"]},
        CSV | OWN_MODEL | {"spec.data.columns.targets": ["click"]},
        "a column can be predicted only once",
    ),
    Case(
        "spec.data",
        CSV | OWN_MODEL | {"spec.data.columns.labels": ["click", "buy"]},
        CSV | {"spec.data.columns.labels": ["click", "buy"]},
        "the DLRM predicts one label",
    ),
    Case(
        "spec.data",
        CSV | OWN_MODEL | {"spec.data.columns.labels": ABSENT, "spec.data.columns.targets": ["dwell"]},
        CSV | {"spec.data.columns.labels": ABSENT, "spec.data.columns.targets": ["dwell"]},
        "the DLRM predicts one label",
    ),
    Case(
        "spec.data.columns.numbers",
        CSV | OWN_MODEL | {"spec.data.columns.targets": ["dwell"]},
        CSV | OWN_MODEL | {"spec.data.columns.targets": ["dwell"], "spec.data.columns.numbers": ["dwell"]},
        "a predicted column cannot be a feature",
    ),
    *(
        Case(
            f"spec.data.columns.{name}",
            CSV | {f"spec.data.columns.{name}": right},
            CSV | {f"spec.data.columns.{name}": wrong},
            "a predicted column cannot be a feature",
        )
        for name, right, wrong in (
            ("counts", ["clicks"], ["click"]),
            ("numbers", [], ["price", "click"]),
            ("categories", ["user", "item"], ["user", "click"]),
        )
    ),
    Case(
        "spec.data",
        PARQUET,
        PARQUET | {"spec.data.columns.categories": ["user"]},
        "each table needs exactly one category",
    ),
    Case(
        "spec.data.columns",
        CSV | BAG | SEPARATED,
        PARQUET | BAG | SEPARATED,
        "only CSV and TSV have a separator of ids",
    ),
    Case(
        "spec.data.columns.integers",
        CSV | {"spec.data.columns.integers": ["item"]},
        CSV | {"spec.data.columns.integers": ["item", "price"]},
        "only categories, or columns of features, have ids",
    ),
    Case(
        "spec.data.columns.integers",
        FEATURES | {"spec.data.columns.integers": ["user"]},
        FEATURES | {"spec.data.columns.integers": ["visitor"]},
        "only categories, or columns of features, have ids",
    ),
    Case("spec.data", CRITEO | NUMBERED, NUMBERED, "Synthetic data has texts as ids"),
    Case("spec.data", DYNAMIC, {"spec.model.tables.0.ids": "XXH64"}, "Synthetic data has texts as ids"),
    Case(
        "spec.model.tables[0].outOfRange",
        CRITEO | NUMBERED | {"spec.model.tables.0.outOfRange": "DefaultRow"},
        CRITEO | {"spec.model.tables.0.outOfRange": "Fail"},
        "only the ids RowNumber and Vocabulary have a range",
    ),
    Case(
        "spec.model.tables[0].vocabulary",
        CRITEO | {"spec.model.tables.0.ids": "Vocabulary", "spec.model.tables.0.vocabulary": {"uri": "/data/a.txt"}},
        CRITEO | {"spec.model.tables.0.ids": "Vocabulary"},
        "the ids Vocabulary need a vocabulary",
    ),
    Case(
        "spec.model.tables[0].vocabulary",
        CRITEO,
        CRITEO | {"spec.model.tables.0.vocabulary": {"uri": "/data/a.txt"}},
        "the ids Vocabulary need a vocabulary",
    ),
    Case(
        "spec.model.tables[0].vocabulary",
        CRITEO | BUILT,
        CRITEO | BUILT | {"spec.model.tables.0.vocabulary": {}},
        "a vocabulary is that of a file, or built",
    ),
    Case(
        "spec.model.tables[0].vocabulary",
        CRITEO | BUILT,
        CRITEO | BUILT | {"spec.model.tables.0.vocabulary": {"uri": "/data/a.txt", "build": {}}},
        "a vocabulary is that of a file, or built",
    ),
    Case(
        "spec.model.tables[0].hashSeed",
        CRITEO | {"spec.model.tables.0.ids": "Murmur3", "spec.model.tables.0.hashSeed": 7},
        CRITEO | {"spec.model.tables.0.hashSeed": 7},
        "only the ids XXH64, Murmur3 and Dynamic are hashed with a seed",
    ),
    Case("spec.data", PARQUET | BAG, BAG, "a table with pooling needs bags of ids"),
    Case("spec.data", CSV | BAG | SEPARATED, CSV | BAG, "a table with pooling needs bags of ids"),
    Case("spec.data", CSV | BAG | SEPARATED, CSV | SEPARATED, "a separator of ids needs a table with pooling"),
)
