"""Runs whose metric goes up and down, and what they leave behind."""

import csv
import json

from tests.loop.samples import TinyTask

SCORES = {2: 0.1, 4: 0.5, 6: 0.7, 8: 0.2, 10: 0.7, 12: 0.6}

EVERY = {"steps_per_loop": 2, "validation_interval": 2, "checkpoint_interval": 4, "train_steps": 12}
BEST = {"best_checkpoint_export_subdir": "best", "best_checkpoint_eval_metric": "score"}


class Wavering(TinyTask):
    """Its `score` is the best at step 6, and as good again at 10."""

    def aggregate_logs(self, state, step_outputs):
        return True

    def reduce_aggregated_logs(self, aggregated_logs, global_step=None):
        return {"score": SCORES.get(global_step, 0.0)}


def history(directory, column):
    with (directory / "history.csv").open() as file:
        return {int(row["step"]): row[column] for row in csv.DictReader(file) if row[column]}


def info(directory):
    return json.loads((directory / "best" / "info.json").read_text())


def record(directory):
    return json.loads((directory / "run.json").read_text())
