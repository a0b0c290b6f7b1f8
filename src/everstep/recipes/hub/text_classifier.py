"""The task of `hub/text_classifier`: a KerasHub classifier of texts, trained whole or by adapters."""

import logging
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from everstep.data.records import open_records
from everstep.engine.late_tensorflow import not_found
from everstep.errors import UsageError
from everstep.recipes.hub.config import LabelledTextConfig
from everstep.recipes.hub.presets import load_model
from everstep.recipes.hub.training_parts import choose_trained
from everstep.task.classification import ClassificationTask

logger = logging.getLogger(__name__)

KIND = "TextClassifier"
SPECIAL = 2
"""The tokens that KerasHub puts around a text: its start and its end."""


class TextClassifierTask(ClassificationTask):
    """Classifies texts with the model of a preset."""

    _preprocessor: Any = None

    def build_model(self) -> keras.Model:
        """Returns the model of the preset with a logit per class."""
        model = load_classifier(KIND, self.task_config)
        self._preprocessor = model.preprocessor
        return model

    def base_weights(self) -> str:
        """Returns the preset, which provides the weights that are not trained."""
        return self.task_config.preset if self.task_config.load_weights else ""

    def build_inputs(self, params: LabelledTextConfig, input_context: Any = None) -> Any:
        """Returns the texts that `params` name as tokens, and the number of the class of each."""
        if self._preprocessor is None:
            self.build_model()
        if not params.input_path:
            raise UsageError("is empty", key="input_path", remedy="name files such as 'data/*.jsonl'")
        records = open_records(params.input_path, columns=(params.text_column, params.label_column))
        rows = records.read(range(len(records)))
        texts, labels = [], []
        for number, row in enumerate(rows):
            for column in (params.text_column, params.label_column):
                if row.get(column) in (None, ""):
                    raise records.error(number, f"has no {column!r}")
            texts.append(str(row[params.text_column]))
            labels.append(self._class(records, number, row[params.label_column]))
        own = int(self._preprocessor.sequence_length)
        length = params.sequence_length or own
        self._check_lengths(records, texts, length, params.long_texts)
        with not_found():
            self._preprocessor.sequence_length = length
            tokens = self._preprocessor(texts)
            self._preprocessor.sequence_length = own
        arrays = {name: np.asarray(keras.ops.convert_to_numpy(array)).astype("int32") for name, array in tokens.items()}
        return arrays, np.array(labels, "int32")

    def _class(self, records: Any, number: int, label: Any) -> int:
        classes = self.task_config.classes
        if str(label) in classes:
            return classes.index(str(label))
        if isinstance(label, int) and 0 <= label < len(classes):
            return label
        raise records.error(number, f"has the class {label!r}, which is not in task.classes")

    def _check_lengths(self, records: Any, texts: Sequence[str], length: int, policy: str) -> None:
        counts = [len(tokens) + SPECIAL for tokens in self._preprocessor.tokenizer.tokenize(list(texts))]
        long = [number for number, count in enumerate(counts) if count > length]
        if long and policy == "refuse":
            reason = f"has {counts[long[0]]} tokens, but a row has {length} (so do {len(long) - 1} more texts)"
            raise records.error(long[0], f"{reason}: raise sequence_length, or set long_texts=truncate")
        if long:
            logger.warning(
                "%d of %d texts are longer than %d tokens: their ends are left out", len(long), len(texts), length
            )


def load_classifier(kind: str, config: Any) -> Any:
    """Returns the classifier of a preset with a logit per class, and adapters as configured.

    Raises:
      UsageError: The preset or the classes cannot be used.
    """
    config.check_classes()
    head = {"num_classes": len(config.classes)} if config.new_head else {}
    model = load_model(kind, config, compile=False, activation=None, **head)
    if model.num_classes != len(config.classes):
        raise UsageError(
            f"its head has {model.num_classes} classes, but {{classes}} has {len(config.classes)}",
            key="task.preset",
            received=config.preset,
            remedy="set {new_head}=true, or name all classes",
            mentions={"classes": "task.classes", "new_head": "task.new_head"},
        )
    choose_trained(model, config)
    return model
