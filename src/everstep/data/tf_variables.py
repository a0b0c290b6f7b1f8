"""Reads the variables of a TensorFlow checkpoint; of a SavedModel, that is its file `variables/variables`."""

import importlib.util
from typing import Any

import numpy as np

from everstep.errors import UsageError, missing_extra

_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_LISTS = ("trainable_variables", "non_trainable_variables")


class TfVariables:
    """The variables of a checkpoint; `read` loads one array at a time.

    Args:
      prefix: The path of the checkpoint without `.index`.

    Attributes:
      shapes: The shape of every variable, by its key.
      names: The variables' names in the program that saved them, by key, if they were saved.
      lists: The keys in the lists of variables that Keras puts at the top of its exports, by the list's name.

    Raises:
      UsageError: TensorFlow is not installed, or the checkpoint cannot be read.
    """

    def __init__(self, prefix: str) -> None:
        if importlib.util.find_spec("tensorflow") is None:
            raise missing_extra("tensorflow", "tensorflow", f"reading the TensorFlow checkpoint {prefix!r}")
        import tensorflow as tf

        self._prefix = prefix
        try:
            self._reader = tf.train.load_checkpoint(prefix)
            shapes, dtypes = self._reader.get_variable_to_shape_map(), self._reader.get_variable_to_dtype_map()
            nodes = self._nodes(dtypes.get(_GRAPH) == tf.string and shapes.get(_GRAPH) == [])
        except Exception as error:  # TensorFlow's own errors, and those of protocol buffers
            raise self._unreadable(error) from error
        numeric = (key for key, dtype in dtypes.items() if dtype.is_floating or dtype.is_integer or dtype.is_bool)
        self.shapes = {key: tuple(shapes[key]) for key in sorted(numeric)}
        self.names = {a.checkpoint_key: a.full_name for node in nodes for a in node.attributes if a.full_name}
        self.lists = _lists(nodes)

    def read(self, key: str) -> np.ndarray:
        """Returns one variable.

        Raises:
          UsageError: The variable cannot be read.
        """
        try:
            return np.asarray(self._reader.get_tensor(key))
        except Exception as error:  # as above
            raise self._unreadable(error) from error

    def _nodes(self, has_graph: bool) -> Any:
        """Returns the objects that were saved; a checkpoint of TensorFlow 1 has none."""
        from tensorflow.core.protobuf import trackable_object_graph_pb2

        text = self._reader.get_tensor(_GRAPH) if has_graph else b""
        return trackable_object_graph_pb2.TrackableObjectGraph.FromString(text).nodes

    def _unreadable(self, error: Exception) -> UsageError:
        reason = str(error).strip().partition("\n")[0]
        return UsageError(f"the TensorFlow checkpoint cannot be read: {reason}", received=self._prefix)


def _lists(nodes: Any) -> dict[str, list[str]]:
    if not nodes:
        return {}
    children = {child.local_name: child.node_id for child in nodes[0].children}
    return {name: _keys(nodes, children[name]) for name in _LISTS if name in children}


def _keys(nodes: Any, number: int) -> list[str]:
    """Returns the keys of the variables in a list, in its order; invalid references are left out."""
    if not 0 <= number < len(nodes):
        return []
    numbered = (child for child in nodes[number].children if child.local_name.isdecimal())
    items = sorted(numbered, key=lambda child: int(child.local_name))
    held = [nodes[item.node_id] for item in items if 0 <= item.node_id < len(nodes)]
    return [node.attributes[0].checkpoint_key for node in held if node.attributes]
