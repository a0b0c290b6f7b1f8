"""The task that tells what the names in a sentence are of."""

from typing import Any

import keras

from everstep.task.token_classification import TokenClassificationTask
from everstep.zoo import sentences
from everstep.zoo.transformer import transformer


class TagsTask(TokenClassificationTask):
    """Gives each word of a sentence its class; what fills a sentence up is not asked for."""

    def build_model(self) -> keras.Model:
        """Returns a transformer that looks at words on both sides."""
        shape, classes = self.task_config.model, len(sentences.CLASSES)
        return transformer(len(sentences.VOCABULARY), sentences.LENGTH, shape, causal=False, outputs=classes)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the sentences that `params` are for, and the classes of their words."""
        return sentences.split(params.is_training)
