"""The task that learns to add, as text."""

from typing import Any

import keras

from everstep.task.language_model import LanguageModelTask
from everstep.zoo import sums
from everstep.zoo.transformer import transformer


class SumsTask(LanguageModelTask):
    """Continues sums; only the answers are asked for."""

    def build_model(self) -> keras.Model:
        """Returns the transformer."""
        return transformer(len(sums.ALPHABET), sums.LENGTH, self.task_config.model, causal=True)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the sums that `params` are for."""
        return sums.split(params.is_training)
