"""Rules of optimizers and schedules: for each a document that keeps it and one that breaks it."""

from __future__ import annotations

from support.documents import Case

ROW_WISE = {"kind": "RowWiseAdagrad", "learningRate": 0.1}
#: A field of a sparse optimizer, a kind that has it, one that has not, and the message for that.
HYPERPARAMETERS = (
    ("epsilon", "Adagrad", "SGD", "SGD has no epsilon"),
    ("beta1", "Adam", "Adagrad", "only Adam has beta1"),
    ("beta2", "Adam", "SGD", "only Adam has beta2"),
)


#: A valid phase, an invalid one, and the message for that.
PHASES = (
    (
        {"kind": "Warmup", "steps": 5, "start": 0.1},
        {"kind": "Linear", "steps": 5, "start": 0.1},
        "only a Warmup has a start",
    ),
    (
        {"kind": "Cosine", "steps": 5, "end": 0.1},
        {"kind": "Constant", "steps": 5, "end": 0.1},
        "only Linear, Cosine and Polynomial have an end",
    ),
    ({"kind": "Polynomial", "steps": 5, "power": 2}, {"kind": "Polynomial", "steps": 5}, "a Polynomial needs a power"),
    (
        {"kind": "Linear", "steps": 5},
        {"kind": "Linear", "steps": 5, "power": 2},
        "a Polynomial needs a power, and other kinds have none",
    ),
    (
        {"kind": "Step", "steps": 5, "every": 2, "factor": 0.5},
        {"kind": "Step", "steps": 5, "every": 2},
        "a Step needs every and factor",
    ),
    (
        {"kind": "Constant", "steps": 5},
        {"kind": "Constant", "steps": 5, "every": 2, "factor": 0.5},
        "other kinds have neither",
    ),
)
OPTIMIZERS = (
    *(
        Case(
            f"spec.model.sparseOptimizer.{field}",
            {"spec.model.sparseOptimizer": {"kind": kind, field: 0.5}},
            {"spec.model.sparseOptimizer": {"kind": other, field: 0.5}},
            message,
        )
        for field, kind, other, message in HYPERPARAMETERS
    ),
    *(
        Case(
            f"spec.model.tables[1].optimizer.{field}",
            {"spec.model.tables.1.optimizer": {"kind": kind, "learningRate": 0.1, field: 0.5}},
            {"spec.model.tables.1.optimizer": {"kind": other, "learningRate": 0.1, field: 0.5}},
            message,
        )
        for field, kind, other, message in HYPERPARAMETERS
    ),
    *(
        Case(
            f"spec.model.denseOptimizer.{field}",
            {"spec.model.denseOptimizer": {"kind": kind, field: 0.5}},
            {"spec.model.denseOptimizer": {"kind": other, field: 0.5}},
            message,
        )
        for field, kind, other, message in (
            ("momentum", "SGD", "Adam", "only SGD has a momentum"),
            ("epsilon", "AdamW", "SGD", "SGD has no epsilon"),
            ("beta1", "Adam", "Adagrad", "only Adam and AdamW have beta1"),
            ("beta2", "AdamW", "SGD", "only Adam and AdamW have beta2"),
        )
    ),
    *(
        Case(
            f"{where}.schedule[0]",
            {at: optimizer | {"schedule": [good]}},
            {at: optimizer | {"schedule": [bad]}},
            message,
        )
        for where, at, optimizer in (
            ("spec.model.denseOptimizer", "spec.model.denseOptimizer", {}),
            ("spec.model.sparseOptimizer", "spec.model.sparseOptimizer", {}),
            ("spec.model.tables[1].optimizer", "spec.model.tables.1.optimizer", ROW_WISE),
        )
        for good, bad, message in PHASES
    ),
    Case(
        "spec.model.denseOptimizer.nesterov",
        {"spec.model.denseOptimizer": {"momentum": 0.9, "nesterov": True}},
        {"spec.model.denseOptimizer": {"nesterov": True}},
        "needs a momentum",
    ),
)
