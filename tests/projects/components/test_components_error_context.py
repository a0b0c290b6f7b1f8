"""An error of the project's inside tf.data: its own reason, whole, and its own line."""

from pathlib import Path

import numpy as np
import pytest

from everstep.errors import UsageError
from everstep.projects.components.error_context import describe_error, error_context

tf = pytest.importorskip("tensorflow")

REASON = f"the file image_2.png has 3 channels, but {'very ' * 100}few were expected: convert it"


def decoded(x):
    raise ValueError(REASON)


def reshaped(x):
    if tf.reduce_sum(x) > 0:
        x = tf.reshape(x, (3, 5))
    return x


def labelled():
    yield 1.0
    raise KeyError("no label for image_7.png")


ROWS = tf.data.Dataset.from_tensor_slices(np.ones((4, 4), "float32"))
RAISED = 'raise KeyError("no label for image_7.png")'
NUMBER = tf.TensorSpec((), tf.float32)


DECODED, RESHAPED = "raise ValueError(REASON)", "x = tf.reshape(x, (3, 5))"


@pytest.mark.parametrize(
    ("make", "source", "reason"),
    [
        (lambda: ROWS.map(lambda x: tf.py_function(decoded, [x], tf.float32)), DECODED, f"ValueError: {REASON}"),
        (lambda: ROWS.map(lambda x: tf.numpy_function(decoded, [x], tf.float32)), DECODED, f"ValueError: {REASON}"),
        (lambda: ROWS.map(reshaped), RESHAPED, "ValueError: Cannot reshape a tensor with 4 elements to shape [3,5]"),
        (lambda: tf.data.Dataset.from_generator(labelled, output_signature=NUMBER), RAISED, "KeyError: 'no label"),
    ],
)
def test_the_reason_is_whole_and_the_line_is_the_projects(make, source, reason):
    here = Path(__file__).resolve()
    line = [each.strip() for each in here.read_text().splitlines()].index(source) + 1
    with pytest.raises(UsageError) as failed, error_context("reading data", here.parent):
        list(make().as_numpy_iterator())
    text = str(failed.value)
    assert text.startswith(f"reading data failed at {here}:{line}: {reason}")
    assert "in user code" not in text
    assert "Traceback" not in text
    assert "{{function_node" not in text
    assert "\n" not in text


def test_a_long_message_keeps_its_last_line():
    text = describe_error(RuntimeError("first\n" + "between " * 1000 + "\nthe last line says what to do"))
    assert text.startswith("RuntimeError: first between")
    assert text.endswith(" … the last line says what to do")
    assert len(text) < 2100
