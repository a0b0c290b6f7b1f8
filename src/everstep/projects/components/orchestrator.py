"""`Orchestrator`: a run from its config file to its reports, from wherever it is."""

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.engine import backend
from everstep.frontends import Verbose, log_output, verbosity
from everstep.log_lines import handlers_kept
from everstep.projects import MlflowTracking, Tracking, tracking_uri, version_text
from everstep.projects.components import export
from everstep.projects.components.base_classes import GenericModelBuilderBase
from everstep.projects.components.building import Components, build_components
from everstep.projects.components.config import DESCRIPTIONS, ConfigStruct, require_epochs
from everstep.projects.components.data_splits import DataSplit, create_split
from everstep.projects.components.evaluation import (
    CODE,
    ExportCheck,
    Results,
    check_evaluation,
    evaluate_all,
    write_pages,
)
from everstep.projects.components.exported_model import SAVED_MODEL, load_exported
from everstep.projects.components.first_batch import check_first_batches
from everstep.projects.components.generic_trainer import GenericTrainer
from everstep.projects.components.keras_trainer import PROJECT, KerasTrainer, compiled_model
from everstep.projects.components.model_metrics import CompiledMetrics, MeanScore
from everstep.projects.components.run_folder import RunFolder, open_run
from everstep.run import RunLock, code_version, print_line
from everstep.tracking import MlflowNames

logger = logging.getLogger(__name__)


class Orchestrator:
    """Trains, exports and evaluates one run of a project.

        Orchestrator("baseline", project_root="~/mnist", data_dir="/data/mnist").run()

    Call it again after any interruption: what is done and intact is skipped, and the rest resumes.

    Args:
      run_name: The folder in `runs/` with the run's config file.
      project_root: The project.
      data_dir: The folder of the data, in place of the one in the config file.
      allow_change: Keys that a resumed run may change although they change what it computes, or that may contradict
        training in an evaluation; the error names them.
      verbose: 0 or False prints nothing, 1, True or "auto" progress, 2 a line per epoch.

    Attributes:
      config: The configuration, with the folder of the data that is used.
      folder: The run's folder.

    Raises:
      UsageError: There is no such run, or its configuration is invalid; one line for every problem.
    """

    def __init__(
        self,
        run_name: str,
        project_root: str | Path = ".",
        data_dir: str | Path | None = None,
        *,
        allow_change: Sequence[str] = (),
        verbose: Verbose = True,
    ) -> None:
        opened = open_run(run_name, project_root, data_dir)
        self.folder, self.config, self._project = opened.folder, opened.config, opened.project
        self._allow_change, self._verbose = allow_change, verbosity(verbose)

    def run(self) -> Results:
        """Trains, exports and evaluates; returns the means by split.

        Raises:
          UsageError: The request is invalid; nothing was done.
          TrainingError: The run started and failed.
        """
        with self._opened() as (components, tracking):
            is_exported = export.is_exported(self.folder, self.config)
            if not is_exported and (damage := export.damage(self.folder)):
                logger.warning("%s: %s; it is made again", self.folder.name, damage)
            if is_exported:
                if self._verbose:
                    text = "is trained and exported already: it is only evaluated again"
                    print_line(f"{self.folder.name} {text}")
            elif isinstance(components.model_builder, GenericModelBuilderBase):
                estimators = GenericTrainer(components, self.folder)
                train, validation = _trained_splits(components)
                backend.prepare(self.config.seed)  # as if nothing had been tried
                estimators.export(estimators.train(train, validation))
            else:
                self._train(components, tracking)
            return self._evaluate(components, tracking)

    def evaluate(self) -> Results:
        """Evaluates the export, and nothing else; returns the means by split.

        Raises:
          UsageError: There is no export, or it is damaged.
          TrainingError: Settings or code have changed, and its validation value is not that of training.
        """
        export.read_export(self.folder)
        with self._opened() as (components, tracking):
            return self._evaluate(components, tracking)

    @contextlib.contextmanager
    def _opened(self) -> Iterator[tuple[Components, Tracking]]:
        """Inside the block the folder is locked, the project is active and everything is seeded."""
        with handlers_kept(), log_output(self._verbose), _locked(self.folder.path), self._project.active():
            self.folder.remove_temporary_files()
            with contextlib.closing(create_tracking(self.folder, self.config, self._project.root)) as tracking:
                backend.prepare(self.config.seed)  # before any object of the user's is built
                yield build_components(self.config, self._project), tracking

    def _train(self, components: Components, tracking: Tracking) -> None:
        allowed = [key for key in self._allow_change if key != CODE]
        trainer = KerasTrainer(components, self.folder, tracking, allowed, self._verbose)
        require_epochs(self.config)
        train, validation = _trained_splits(components)
        check_first_batches(components, train, validation, create_split(components, "test"))
        backend.prepare(self.config.seed)  # as if nothing had been tried
        trainer.train(train, validation)
        if not export.is_current(self.folder, self.config):
            trainer.export(_first_inputs(validation))

    def _evaluate(self, components: Components, tracking: Tracking) -> Results:
        record = export.read_export(self.folder)
        allowed = [key.removeprefix(f"{PROJECT}.") for key in self._allow_change]
        check = ExportCheck(self.folder, self.config, record, allowed)
        exported: Any
        if isinstance(components.model_builder, GenericModelBuilderBase):
            exported = GenericTrainer(components, self.folder).load()
            metrics: Any = functools.partial(MeanScore, exported)
        else:
            path = self.folder.exported / record.get("model", SAVED_MODEL)
            exported = load_exported(path, record["inputs"])
            model = compiled_model(components)
            if not model.built:
                model(_first_inputs(create_split(components, "validation")))
            exported.give_weights(model)
            metrics = functools.partial(CompiledMetrics, model)
        results = evaluate_all(components, self.folder, exported.predict, metrics, tracking, check)
        write_pages(self.folder, self.config, tracking)
        return results


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Inside the block the run's folder is locked; a failure that leaves nothing else leaves no lock file either."""
    before = set(folder.iterdir())
    with RunLock(folder):
        try:
            yield
        except Exception:
            new = set(folder.iterdir()) - before
            if all(path.name.startswith(".lock") for path in new):
                for path in new:
                    path.unlink(missing_ok=True)
            raise


def _trained_splits(components: Components) -> tuple[DataSplit, DataSplit]:
    """Returns training and validation data, after checking what would fail only after training."""
    train, validation = create_split(components, "training"), create_split(components, "validation")
    with components.naming("data_loader"):
        check_evaluation(components, validation)
    return train, validation


def _first_inputs(split: DataSplit) -> Any:
    return next(split.batches())[0]


def create_tracking(folder: RunFolder, config: ConfigStruct, root: Path) -> Tracking:
    """Returns the tracking of a run; without MLflow, warns and returns one that is switched off.

    Args:
      folder: The run's folder.
      config: The configuration.
      root: The project, whose code version is recorded.

    Raises:
      UsageError: `MLFLOW_TRACKING_URI` is no server or database.
    """
    uri = tracking_uri(folder.path.parent.parent)
    if uri is None:
        return Tracking()
    names = functools.cache(functools.partial(mlflow_names, folder.name, config, root))
    return MlflowTracking(folder.path, uri, folder.run_id, names)


def mlflow_names(run_name: str, config: ConfigStruct, root: Path) -> MlflowNames:
    """Returns what a run is called on MLflow: every value of the configuration is a parameter `config_<dotted.key>`.

    Secrets are left out, and so are the sections that only describe the model.
    """
    version = version_text(code_version(root))
    described = {name: value for name, value in config.as_dict().items() if name not in DESCRIPTIONS}
    values = {f"config_{key}": value for key, value in ConfigStruct(redaction.tree(described)).leaves()}
    return MlflowNames(
        experiment=str(config.project_name),
        run=run_name,
        params={**values, "project name": config.project_name, "run name": run_name, "code version": version},
        tags={"session_type": "training", "code version": version},
        results={"model.evaluate": "{split}__model.evaluate_{name}", "eval_funcs": "{split}_{name}"},
    )
