"""Tasks: what is learned.

`Task` is the base class that users write; it knows nothing of the loop. `CompiledTask` and `ClassificationTask` are
ready-made.

task.py            `Task`: build_model, build_inputs, train_step, validation_step
config.py          `TaskConfig`
grad.py            `value_and_grad` and `cond`: where the backends differ inside a step
compiled.py        `CompiledTask`: a compiled Keras model
classification.py  classification of samples, images and tokens; language models
regression.py      regression
distillation.py    a student that learns from a teacher
generation.py      text that a language model writes
chunked_loss.py    the loss of a language model, in chunks of tokens
description.py     a compiled model in plain values
optim/             optimizers and schedules
initial/           initial weights
multitask/         several tasks with one model
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.task.classification import (
        IGNORED,
        ClassificationTask,
        ImageClassificationTask,
        LanguageModelTask,
        TokenClassificationTask,
        augmentation_layers,
    )
    from everstep.task.compiled import (
        CompiledTask,
        needs_labels,
        require_compiled,
    )
    from everstep.task.config import (
        AugmentationConfig,
        GenerationConfig,
        OwnDataConfig,
        TaskConfig,
    )
    from everstep.task.description import (
        Settings,
        constant_rate,
        describe,
        remember_description,
        settings,
    )
    from everstep.task.distillation import DistillationTask
    from everstep.task.generation import (
        continue_tokens,
        host_logits,
        tokens_of,
    )
    from everstep.task.grad import (
        ChainedScope,
        adapt_loss_scaling,
        as_scalar,
        cond,
        current_share,
        forget_scaled,
        gradients_skipped,
        keras_masks,
        on_replica,
        set_keras_masks,
        shared,
        value_and_grad,
    )
    from everstep.task.regression import RegressionTask
    from everstep.task.task import (
        Task,
        compiled_loss,
        compiled_metrics,
        has_loss,
        unpack,
        weight_argument,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
