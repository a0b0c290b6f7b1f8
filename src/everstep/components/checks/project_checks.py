"""The configuration, and the classes that it names."""

from collections.abc import Callable

from everstep.components.building import build_component
from everstep.components.checks.outcome import NotNeeded
from everstep.components.checks.subject import Subject
from everstep.components.config_checks import require_epochs
from everstep.components.opening import open_run
from everstep.engine import backend


def configuration(subject: Subject) -> str:
    """The config file can be read, its keys are known and their values possible."""
    opened = open_run(subject.run_name, subject.root, subject.data_dir)
    subject.open(opened)
    backend.prepare(opened.config.seed)
    return f"{opened.config.origin} is complete, seed {opened.config.seed}"


def built(component: str) -> Callable[[Subject], str]:
    """Returns the check that a component is built from the configuration, and from None."""

    def check(subject: Subject) -> str:
        opened = subject.opened
        name = opened.config[f"{component}_class"]
        if component == "augmentor" and not _augments(subject):
            raise NotNeeded("neither do_train_augmentation nor do_validation_augmentation is true")
        subject.built[component] = build_component(component, opened.config, opened.project)
        if component == "model_builder" and not subject.is_generic:
            require_epochs(opened.config)
        build_component(component, opened.config, opened.project, empty=True)
        return f"{name} is built from the configuration, and from None"

    return check


def _augments(subject: Subject) -> bool:
    config = subject.opened.config
    return bool(config.do_train_augmentation or config.do_validation_augmentation)
