"""The list of checks in their order, each with those it depends on; and the first ones, of config and classes."""

from collections.abc import Callable, Iterator

from everstep.engine import backend
from everstep.projects.components.building import BASES, build_component
from everstep.projects.components.checks import data_checks, model_checks
from everstep.projects.components.checks.runner import Check, CheckOutcome, Skip, Subject, run_checks
from everstep.projects.components.config import augments, require_epochs
from everstep.projects.components.run_folder import open_run


def configuration(subject: Subject) -> str:
    """The config file can be read, its keys are known and their values valid."""
    opened = open_run(subject.run_name, subject.root, subject.data_dir)
    subject.open(opened)
    backend.prepare(opened.config.seed)
    return f"the configuration is complete, seed {opened.config.seed}"


def built(component: str) -> Callable[[Subject], str]:
    """Returns the check that a component can be built from the configuration, and from None."""

    def check(subject: Subject) -> str:
        config, project = subject.opened.config, subject.opened.project
        if component == "augmentor" and not augments(config):
            raise Skip("neither do_train_augmentation nor do_validation_augmentation is true")
        subject.built[component] = build_component(component, config, project)
        if component == "model_builder" and not subject.is_generic:
            require_epochs(config)
        build_component(component, config, project, empty=True)
        return f"{config[f'{component}_class']} can be built from the configuration, and from None"

    return check


_LOADER, _BUILDER, _EVALUATOR = "build data_loader", "build model_builder", "build evaluator"
_BATCHES = ("training batches", "validation batches")
_PIPELINE = ("build preprocessor", "build augmentor", "augmentation")

CHECKS = (
    Check("config", "configuration", configuration),
    *(Check(name, f"build {name}", built(name), ("configuration",)) for name in BASES),
    Check("data_loader", "training samples", data_checks.samples_of("training"), (_LOADER,)),
    Check("data_loader", "validation samples", data_checks.samples_of("validation"), (_LOADER,)),
    Check("data_loader", "test samples", data_checks.samples_of("test"), (_LOADER,)),
    Check("data_loader", "validation order", data_checks.order, ("validation samples",)),
    Check("data_loader", "test ids", data_checks.test_ids, ("test samples",)),
    Check("data_loader", "splits", data_checks.splits, ("training samples", "validation samples", "test samples")),
    Check("augmentor", "augmentation", data_checks.augmentation, ("build augmentor", "training samples")),
    Check("preprocessor", "training batches", data_checks.batches_of("training"), ("training samples", *_PIPELINE)),
    Check(
        "preprocessor", "validation batches", data_checks.batches_of("validation"), ("validation samples", *_PIPELINE)
    ),
    Check("preprocessor", "test batches", data_checks.batches_of("test"), ("test samples", "build preprocessor")),
    Check("preprocessor", "weights", data_checks.weights, _BATCHES),
    Check("model_builder", "model", model_checks.model, (_BUILDER,)),
    Check("model_builder", "input", model_checks.inputs, ("model", *_BATCHES)),
    Check("model_builder", "labels", model_checks.labels, ("input",)),
    Check("model_builder", "probabilities", model_checks.probabilities, ("labels",)),
    Check("model_builder", "class weights", model_checks.class_weight, ("input",)),
    Check("model_builder", "step", model_checks.step, ("labels", "weights", "class weights")),
    Check("model_builder", "overfitting", model_checks.overfit, ("step",)),
    Check("model_builder", "callbacks", model_checks.callbacks, (_BUILDER,)),
    Check("config", "export metric", model_checks.export_metric, ("step",)),
    Check("model_builder", "estimator", model_checks.estimator, (_BUILDER, *_BATCHES)),
    Check("evaluator", "functions", model_checks.functions, (_EVALUATOR, "input", "estimator")),
    Check("model_builder", "export", model_checks.export, ("input",)),
)
"""All checks."""


def check_all(subject: Subject) -> Iterator[CheckOutcome]:
    """Yields the outcome of each check of a run, as soon as it is known."""
    return run_checks(subject, CHECKS)
