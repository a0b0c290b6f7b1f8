"""What `fit` adds to a kept run when training is done: samples of the validation data, and the report.

The model that ships is evaluated sample by sample, once for each step that a run ends with: what was evaluated is in
its record. A finished run that is called again does what a kill has left undone.
"""

import copy
import logging
from pathlib import Path

import keras

from everstep.data import LimitedStream, Stream, nest
from everstep.errors import UsageError
from everstep.frontends import write_final_samples
from everstep.run import Run

logger = logging.getLogger(__name__)

SPLIT = "validation"
"""The name of the data in the files of the evaluation."""

MOST_SECONDS = 10.0
"""An evaluation that takes longer is left to the user, who asks for it with `report=True`."""

_SAMPLES_PER_SECOND = 5000
"""How many rows are at least written in a second, beside the time of the model."""


class FinalReport:
    """The evaluation and the report at the end of a kept run.

    Args:
      model: The model.
      validation: The validation data before it was read; None if there is none.
      steps: How many batches of it are evaluated; None for all.
      wanted: `report` of `fit`: None where it takes seconds, True always, False never.
    """

    def __init__(self, model: keras.Model, validation: Stream | None, steps: int | None, wanted: bool | None) -> None:
        self._model, self._steps = model, steps
        self._is_wanted = validation is not None if wanted is None else wanted
        self._takes_any_time = bool(wanted)
        self._validation = None if validation is None or not self._is_wanted else copy.copy(validation)
        self._why_not = ""

    def evaluate(self, run: Run) -> None:
        """Evaluates the samples, unless they are evaluated already; an evaluation that fails does not fail the run."""
        if self._validation is None:
            return
        wanted = {"split": SPLIT, "step": run.record["step"]}
        if run.record.get("samples") == wanted and (run.directory / "reports" / f"{SPLIT}.json").is_file():
            return
        if self._validation.is_single_pass:
            self._why_not = "the validation data can be read only once"
            return
        seconds = self._estimated_seconds(run)
        if seconds > MOST_SECONDS and not self._takes_any_time:
            self._why_not = f"that would take about {seconds:.0f} s; fit(…, report=True) adds them, also to this run"
            return
        try:
            self._write_samples(run)
        except UsageError as error:
            self._why_not = error.reason
        except Exception as error:  # the model's own code, and the data, may fail in any way
            self._why_not = f"{type(error).__name__}: {error}".splitlines()[0]
        else:
            run.record["samples"] = wanted

    def write(self, directory: Path) -> str:
        """Writes the report when the run is recorded as finished; returns its path in the run, and what it lacks."""
        if not self._is_wanted:
            return ""
        from everstep import report

        try:
            path = report.write(directory).relative_to(directory)
        except (UsageError, OSError) as error:
            logger.warning("the report is not written: %s", error)
            return ""
        return f"{path}{f', without samples: {self._why_not}' if self._why_not else ''}"

    def _estimated_seconds(self, run: Run) -> float:
        """Returns how long the evaluation will take: as the last one of the loop, and the rows."""
        measured = run.record["metrics"]["validation"].get("eval_seconds", 0.0)
        batches = self._steps or self._opened().batches_per_epoch or 0
        first = nest.flatten(self._opened().peek())[0]
        return float(measured) + batches * len(first) / _SAMPLES_PER_SECOND

    def _opened(self) -> Stream:
        """Returns the validation data from its first batch on."""
        stream: Stream = copy.copy(self._validation)  # type: ignore[assignment]
        return stream

    def _write_samples(self, run: Run) -> None:
        opened = self._opened()
        write_final_samples(
            self._model, opened if self._steps is None else LimitedStream(opened, self._steps), run, SPLIT
        )
