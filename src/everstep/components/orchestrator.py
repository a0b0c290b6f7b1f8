"""`Orchestrator`: a run from its config file to its reports, from wherever it is."""

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.components import exporting
from everstep.components.building import Components, build_components
from everstep.components.config_checks import require_epochs
from everstep.components.evaluating import Artefact, Results, check_evaluation, evaluate_all
from everstep.components.export_check import CODE, ExportCheck
from everstep.components.flows import Flow, make_flow
from everstep.components.generic_trainer import GenericTrainer
from everstep.components.keras_trainer import KerasTrainer, compiled_model
from everstep.components.model_builder import GenericModelBuilderBase
from everstep.components.opening import open_run
from everstep.components.own_metrics import CompiledMetrics, MeanScore
from everstep.components.pages import write_pages
from everstep.components.preflight import check_first_batches
from everstep.components.served import SAVED_MODEL, open_served
from everstep.components.tracking import Tracking, make_tracking
from everstep.components.training_config import loop_keys
from everstep.engine import backend
from everstep.errors import UsageError
from everstep.run.lock import RunLock


class Orchestrator:
    """Trains, exports and evaluates one run of a project.

        Orchestrator("baseline", project_root="~/mnist", data_dir="/data/mnist").run()

    Call it again after whatever happened: what is done and intact is left alone, and what is not goes on.

    Args:
      run_name: The folder in `runs/` with the run's config file.
      project_root: The project.
      data_dir: Where the data is, in place of what the config file says.
      allow_change: Keys that a resumed run may change although they alter what it computes, or that may contradict
        training in an evaluation; the refusal names them.
      verbose: Whether to print progress.

    Attributes:
      config: The configuration, with the data's folder that is used.
      folder: The run's folder.

    Raises:
      UsageError: There is no such run, or its configuration cannot be used; one line for every finding.
    """

    def __init__(
        self,
        run_name: str,
        project_root: str | Path = ".",
        data_dir: str | Path | None = None,
        *,
        allow_change: Sequence[str] = (),
        verbose: bool = True,
    ) -> None:
        opened = open_run(run_name, project_root, data_dir)
        self.folder, self.config, self._project = opened.folder, opened.config, opened.project
        self._allow_change, self._verbose = allow_change, verbose

    def run(self) -> Results:
        """Trains, exports and evaluates; returns the means by split.

        Raises:
          UsageError: The request cannot be carried out; nothing was done.
          TrainingError: The run started and failed.
        """
        with self._begun() as (components, tracking):
            if exporting.is_exported(self.folder, self.config):
                self._say(f"{self.folder.name} is trained and exported already: it is only evaluated again")
            elif isinstance(components.model_builder, GenericModelBuilderBase):
                self._fit(components)
            else:
                self._train(components, tracking)
            return self._evaluate(components, tracking)

    def evaluate(self) -> Results:
        """Evaluates what is exported, and nothing else; returns the means by split.

        Raises:
          UsageError: There is no export, or it is damaged.
          TrainingError: With other settings or other code, its validation value is not that of training.
        """
        exporting.read_export(self.folder)
        with self._begun() as (components, tracking):
            return self._evaluate(components, tracking)

    @contextlib.contextmanager
    def _begun(self) -> Iterator[tuple[Components, Tracking]]:
        """The folder is this process's alone, the project is active, everything is seeded, and numbers are tracked."""
        with _locked(self.folder.path), self._project.active():
            self.folder.tidy()
            with contextlib.closing(make_tracking(self.folder, self.config, self._project.root)) as tracking:
                backend.prepare(self.config.seed)  # before any object of the user's is built
                yield build_components(self.config, self._project), tracking

    def _say(self, line: str) -> None:
        if self._verbose:
            with contextlib.suppress(OSError):  # nobody listens any more: no reason to stop
                print(line, file=sys.stderr)

    def _train(self, components: Components, tracking: Tracking) -> None:
        allowed = loop_keys(self.config, [key for key in self._allow_change if key != CODE])
        trainer = KerasTrainer(components, self.folder, tracking, allowed, self._verbose)
        require_epochs(self.config)
        train, validation = _flows(components)
        check_first_batches(components, train, validation)
        backend.prepare(self.config.seed)  # as if nothing had been tried
        trainer.train(train, validation)
        if not exporting.is_current(self.folder, self.config):
            trainer.export(_sample(validation))

    def _fit(self, components: Components) -> None:
        trainer = GenericTrainer(components, self.folder)
        train, validation = _flows(components)
        backend.prepare(self.config.seed)  # as if nothing had been tried
        trainer.export(trainer.train(train, validation))

    def _evaluate(self, components: Components, tracking: Tracking) -> Results:
        record = exporting.read_export(self.folder)
        check = ExportCheck(self.folder, self.config, record, self._allow_change)
        if isinstance(components.model_builder, GenericModelBuilderBase):
            estimator = GenericTrainer(components, self.folder).load()
            artefact = Artefact(estimator.predict, lambda: MeanScore(estimator))
        else:
            artefact = self._exported(components, record)
        results = evaluate_all(components, self.folder, artefact, tracking, check)
        write_pages(self.folder, self.config, tracking)
        return results

    def _exported(self, components: Components, record: Mapping[str, Any]) -> Artefact:
        exported = open_served(self.folder.exported / record.get("model", SAVED_MODEL), record["inputs"])
        model = compiled_model(components)
        if not model.built:
            model(_sample(make_flow(components, "validation")))
        exported.give_weights(model)
        return Artefact(exported.predict, lambda: CompiledMetrics(model))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder is this process's alone; a request that is refused leaves no lock behind either."""
    before = set(folder.glob(".lock*"))
    with RunLock(folder):
        try:
            yield
        except UsageError:
            for path in set(folder.glob(".lock*")) - before:
                path.unlink(missing_ok=True)
            raise


def _flows(components: Components) -> tuple[Flow, Flow]:
    """Returns the training and the validation data; what would fail only after training is looked at now."""
    train, validation = make_flow(components, "training"), make_flow(components, "validation")
    with components.naming("data_loader"):
        check_evaluation(components, validation)
    return train, validation


def _sample(flow: Flow) -> Any:
    """Returns the inputs of a first batch."""
    return next(flow.batches())[0]
