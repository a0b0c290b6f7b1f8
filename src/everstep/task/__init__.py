"""Tasks: what is learned.

`Task` is the base class that users write; it knows nothing of the loop. `CompiledTask` and `ClassificationTask` are
ready-made.

task.py            `Task`: build_model, build_inputs, train_step, validation_step, `batch_weight`, and what each does
                   by default; missing labels, losses
config.py          `TaskConfig`: the task's keys; which may change on a resume; image augmentation, text generation:
                   defaults
grad.py            `value_and_grad` and `cond`: where the backends differ inside a step; gradients of a loss that was
                   not scaled
compiled.py        `CompiledTask`: a compiled Keras model; its own `train_step`; "is not compiled"
classification.py  classification of samples, images and tokens; language models: losses, metrics, labels that are
                   ignored (-1) or refused
regression.py      regression: mean squared error, shapes of labels
distillation.py    a student that learns from a teacher: the loss, temperature
generation.py      text that a language model writes: most likely or drawn token, `top_k`, where it stops, prompts
                   that are too long
chunked_loss.py    the loss of a language model in chunks of tokens (`loss_chunk_tokens`)
description.py     a compiled model in plain values: which changes of layers or optimizer a resume sees
layer_text.py      the arguments of a layer in such a description, and those in which two layers differ
optim/             optimizers and schedules
initial/           initial weights: `init_checkpoint`
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
    from everstep.task.layer_text import differing_arguments
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
