"""The entry points: one package for each interface that users bring from another system, all on the same loop.

compiled.py          trains a compiled Keras model; fit, Training, components and flow call it
fit/                 `everstep.fit`
training/            `everstep.Training`
components/          `Orchestrator`: data loader, preprocessor, model builder and evaluator of a project
flow/                `FlowTask`, and `everstep flow`
catalog/             data by name, for flows and programs
layouts.py           what each entry point calls its files
project_tracking.py  a run on MLflow, for components and flows
keras_names.py       optimizers, losses and metrics by name, checked before a model is compiled
verbose.py           what `verbose` means
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.frontends import compiled
    from everstep.frontends.compiled import (
        CompiledTaskConfig,
        RunPlan,
        train_compiled,
        validated_epochs,
    )
    from everstep.frontends.keras_names import (
        plain_names,
        require_losses,
        require_metrics,
        require_optimizer,
    )
    from everstep.frontends.layouts import (
        COMPONENTS,
        FLOW,
        TRAINING,
    )
    from everstep.frontends.project_tracking import (
        MlflowTracking,
        Tracking,
        tracking_uri,
        version_text,
    )
    from everstep.frontends.verbose import (
        Verbose,
        log_output,
        verbosity,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
