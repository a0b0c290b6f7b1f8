"""The task of `mnist/distilled`: a small student, and a teacher from a file."""

from typing import Any

import keras

from everstep.errors import UsageError
from everstep.recipes.mnist_task import MnistTask
from everstep.task import DistillationTask
from everstep.trained import find, load_keras, local_run

_KEY = "task.teacher"


class DistilledMnistTask(DistillationTask, MnistTask):
    """Classifies images of ten digits as its teacher does."""

    def build_model(self) -> keras.Model:
        """Returns the student."""
        return DistillationTask.build_model(self)

    def build_student(self) -> keras.Model:
        """Returns the dense or the convolutional classifier."""
        return MnistTask.build_model(self)

    def build_teacher(self) -> keras.Model:
        """Returns the model of a run, or of a file."""
        return load_teacher(self.task_config.teacher, (28, 28), 10)


def load_teacher(name: str, shape: tuple[int, ...], classes: int) -> keras.Model:
    """Returns a trained classifier; files are loaded as untrusted, no code in them is run.

    Args:
      name: A run that has exported its model, its URL, or a `.keras` file.
      shape: The shape of a sample.
      classes: The number of logits that it has to return.

    Raises:
      UsageError: There is no such model, or it has another shape; the key is `task.teacher`.
    """
    try:
        file = find(local_run(name, checkpoints=False)).model
        if file is None or file.suffix != ".keras":
            raise UsageError("has no export/model.keras", remedy=f"write it: everstep export {name}")
        teacher = load_keras(file)
    except UsageError as error:
        raise UsageError(error.reason, key=_KEY, received=name, remedy=error.remedy) from error
    fits: Any = (tuple(teacher.input_shape[1:]), teacher.output_shape[-1]) == (shape, classes)
    if not fits:
        reason = f"maps {teacher.input_shape} to {teacher.output_shape}, not {(None, *shape)} to {(None, classes)}"
        raise UsageError(reason, key=_KEY, received=name)
    return teacher
