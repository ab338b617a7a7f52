"""Rules of jobs that follow their data (`spec.data.follow`, ADR 49). The trainers check the same (`check_follow`)."""

from __future__ import annotations

from cpr_operator.api.rules.rule import Rule

_OTHERWISE = "or remove spec.data.follow"
_FIXED = "!has(self.data.follow)"
OF_FOLLOW = (
    Rule(
        "spec.data/follow",
        "only data that other programs write can grow",
        "remove it, or choose a spec.data.format of files",
        "!has(self.follow) || !(self.format in ['Synthetic', 'Custom'])",
    ),
    Rule(
        "spec.data/uri",
        "a metadata file of Iceberg has one version of its table, which never grows",
        f"give the folder of the table, {_OTHERWISE}",
        "!has(self.follow) || self.format != 'Iceberg' || !has(self.uri)"
        " || !self.uri.matches('[.]metadata[.]json([.]gz)?$')",
    ),
    Rule(
        "spec.data/samples",
        "data that grows has no number of samples",
        f"remove spec.data.samples, and end the data by spec.data.follow.until or idle, {_OTHERWISE}",
        "!has(self.follow) || !has(self.samples)",
    ),
    Rule(
        "spec.data/epochs",
        "data that grows is trained once, as it arrives",
        f"remove spec.data.epochs, {_OTHERWISE}",
        "!has(self.follow) || !has(self.epochs) || self.epochs == 1",
    ),
    Rule(
        "spec.data/holdOut",
        "the last rows of data that grows are other rows each time, so none can be held out",
        f"remove spec.data.holdOut and name other data in spec.evaluation.uri, {_OTHERWISE}",
        "!has(self.follow) || self.holdOut == 0.0",
    ),
    Rule(
        "spec/evaluation.uri",
        "data that grows holds out no rows to evaluate on",
        f"name other data in spec.evaluation.uri, remove spec.evaluation, {_OTHERWISE}",
        f"{_FIXED} || has(self.evaluation.uri) || (self.evaluation.everySamples == 0 && !has(self.evaluation.groupBy))",
    ),
    Rule(
        "spec/evaluation.earlyStop",
        "a job that follows its data ends with its data",
        f"remove spec.evaluation.earlyStop, {_OTHERWISE}",
        f"{_FIXED} || !has(self.evaluation.earlyStop)",
    ),
    Rule(
        "spec/model.tables",
        "a vocabulary is fixed before the first step, and data that grows has further values",
        f"choose the ids Dynamic or CPR64, {_OTHERWISE}",
        f"{_FIXED} || !self.model.tables.exists(t, t.ids == 'Vocabulary')",
    ),
    Rule(
        "spec/trainers.denseSync",
        "trainers of a job that follows its data take each step together, and in a shadow mode they do not",
        f"set it to AllReduce, {_OTHERWISE}",
        f"{_FIXED} || self.trainers.denseSync == 'AllReduce'",
    ),
)
