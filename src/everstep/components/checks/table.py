"""The checks in their order; each names those without which it makes no sense."""

from collections.abc import Iterator

from everstep.components.checks import (
    batch_checks,
    evaluation_checks,
    learning_checks,
    model_checks,
    project_checks,
    sample_checks,
)
from everstep.components.checks.outcome import Outcome
from everstep.components.checks.running import Check, run_checks
from everstep.components.checks.subject import Subject

_LOADER, _BUILDER, _EVALUATOR = "build data_loader", "build model_builder", "build evaluator"
_BATCHES = ("training batches", "validation batches")
_PIPELINE = ("build preprocessor", "build augmentor", "augmentation")

CHECKS = (
    Check("config", "configuration", project_checks.configuration),
    *(
        Check(name, f"build {name}", project_checks.built(name), ("configuration",))
        for name in ("data_loader", "augmentor", "preprocessor", "model_builder", "evaluator")
    ),
    Check("data_loader", "training samples", sample_checks.samples_of("training"), (_LOADER,)),
    Check("data_loader", "validation samples", sample_checks.samples_of("validation"), (_LOADER,)),
    Check("data_loader", "test samples", sample_checks.samples_of("test"), (_LOADER,)),
    Check("data_loader", "validation order", sample_checks.order, ("validation samples",)),
    Check("data_loader", "test ids", sample_checks.test_ids, ("test samples",)),
    Check("data_loader", "splits", sample_checks.apart, ("training samples", "validation samples", "test samples")),
    Check("augmentor", "augmentation", batch_checks.augmentation, ("build augmentor", "training samples")),
    Check("preprocessor", "training batches", batch_checks.batches_of("training"), ("training samples", *_PIPELINE)),
    Check(
        "preprocessor", "validation batches", batch_checks.batches_of("validation"), ("validation samples", *_PIPELINE)
    ),
    Check("preprocessor", "test batches", batch_checks.batches_of("test"), ("test samples", "build preprocessor")),
    Check("preprocessor", "weights", batch_checks.weights, _BATCHES),
    Check("model_builder", "model", model_checks.model, (_BUILDER,)),
    Check("model_builder", "input", model_checks.inputs, ("model", *_BATCHES)),
    Check("model_builder", "labels", model_checks.labels, ("input",)),
    Check("model_builder", "probabilities", model_checks.probabilities, ("labels",)),
    Check("model_builder", "class weights", model_checks.class_weight, ("input",)),
    Check("model_builder", "step", learning_checks.step, ("labels", "weights", "class weights")),
    Check("model_builder", "overfitting", learning_checks.overfit, ("step",)),
    Check("model_builder", "callbacks", model_checks.callbacks, (_BUILDER,)),
    Check("config", "export metric", model_checks.export_metric, ("step",)),
    Check("model_builder", "estimator", evaluation_checks.estimator, (_BUILDER, *_BATCHES)),
    Check("evaluator", "functions", evaluation_checks.functions, (_EVALUATOR, "input", "estimator")),
    Check("model_builder", "export", model_checks.export, ("input",)),
)
"""All of them."""


def check_all(subject: Subject) -> Iterator[Outcome]:
    """Yields what each check finds out about a run, as soon as it is known."""
    return run_checks(subject, CHECKS)
