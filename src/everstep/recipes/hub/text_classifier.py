"""The task of `hub/text_classifier`: a KerasHub classifier of texts, trained whole or by adapters."""

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from everstep import ClassificationTask
from everstep.data import ArrayFile
from everstep.data.records import Records, open_records
from everstep.engine import not_found
from everstep.errors import UsageError
from everstep.recipes.hub.config import LabelledTextConfig
from everstep.recipes.hub.presets import load_model
from everstep.recipes.hub.training_parts import choose_trained

logger = logging.getLogger(__name__)

KIND = "TextClassifier"
SPECIAL = 2
"""The tokens that KerasHub puts around a text: its start and its end."""


class TextClassifierTask(ClassificationTask):
    """Classifies texts with the model of a preset."""

    rows_at_once = 256
    """Texts that are in memory at once, while they are tokenized."""

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
        own = int(self._preprocessor.sequence_length)
        self._preprocessor.sequence_length = params.sequence_length or own
        try:
            with not_found():
                return self._tokenized(records, params)
        finally:
            self._preprocessor.sequence_length = own

    def _tokenized(self, records: Records, params: LabelledTextConfig) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Returns the tokens and the classes of all rows; the tokens are in files, and in memory only while used."""
        labels = np.zeros(len(records), "int32")
        lengths = np.zeros(len(records), "int64")
        files: dict[str, ArrayFile] = {}
        with contextlib.ExitStack() as opened:
            for start in range(0, len(records), self.rows_at_once):
                numbers = range(start, min(start + self.rows_at_once, len(records)))
                rows = list(zip(numbers, records.read(numbers), strict=True))
                texts = [str(self._value(records, number, row, params.text_column)) for number, row in rows]
                for number, row in rows:
                    label = self._value(records, number, row, params.label_column)
                    labels[number] = self._class(records, number, label)
                tokens = self._preprocessor.tokenizer.tokenize(texts)
                lengths[start : numbers.stop] = [len(one) + SPECIAL for one in tokens]
                if params.long_texts == "refuse":
                    self._refuse_long(records, lengths, numbers.stop)
                for name, array in self._preprocessor(texts).items():
                    if name not in files:
                        files[name] = opened.enter_context(ArrayFile())
                    files[name].append(keras.ops.convert_to_numpy(array).astype("int32"))
            arrays = {name: file.array() for name, file in files.items()}
        if long := int(np.count_nonzero(lengths > self._preprocessor.sequence_length)):
            text = "%d of %d texts are longer than %d tokens: their ends are left out"
            logger.warning(text, long, len(records), self._preprocessor.sequence_length)
        return arrays, labels

    def _value(self, records: Records, number: int, row: Mapping[str, Any], column: str) -> Any:
        if row.get(column) in (None, ""):
            raise records.error(number, f"has no {column!r}")
        return row[column]

    def _class(self, records: Records, number: int, label: Any) -> int:
        """Returns the class of a label: by its name, or by its number, which a CSV file has as text."""
        classes, text = self.task_config.classes, str(label)
        if text in classes:
            return classes.index(text)
        if text.isdecimal() and int(text) < len(classes) and not any(name.isdecimal() for name in classes):
            return int(text)
        raise records.error(number, f"has the class {label!r}, which is not in task.classes")

    def _refuse_long(self, records: Records, lengths: np.ndarray, end: int) -> None:
        length = self._preprocessor.sequence_length
        long = np.flatnonzero(lengths > length)
        if len(long):
            reason = f"has {lengths[long[0]]} tokens, but a row has {length}; {len(long)} of the first {end} texts are"
            remedy = "raise sequence_length, or set long_texts=truncate"
            raise records.error(int(long[0]), f"{reason} too long", remedy=remedy)


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
