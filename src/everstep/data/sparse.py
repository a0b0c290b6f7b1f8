"""Sparse and ragged tensors on the host, as named tuples of plain arrays.

A batch is a nesting of arrays. A sparse or ragged tensor in it becomes a small named tuple of arrays, so that it is
stacked, fingerprinted and placed like any other array; an engine assembles the tensor again for the step. The first
array of each tuple has the samples along its first axis, as every array of a batch has.
"""

from typing import Any, NamedTuple

import numpy as np

from everstep.errors import UsageError


class SparseArray(NamedTuple):
    """A sparse tensor of any rank, by coordinates.

    Attributes:
      rows: As many zeros as there are samples.
      like: An array without elements; its shape after the first axis is that of the tensor.
      indices: The coordinates of the values, of shape (values, rank).
      values: The values.
    """

    rows: np.ndarray
    like: np.ndarray
    indices: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, indices: Any, values: Any, shape: Any) -> "SparseArray":
        """Returns the parts of a tensor, sorted by coordinates."""
        indices, values, shape = np.asarray(indices, np.int32), np.asarray(values), tuple(map(int, shape))
        order = np.lexsort(indices.T[::-1])
        return cls(np.zeros(shape[0], np.uint8), np.zeros((0, *shape), np.uint8), indices[order], values[order])


class RaggedArray(NamedTuple):
    """A ragged tensor.

    Attributes:
      lengths: The row lengths of each ragged dimension; the first has one per sample.
      values: All values in one flat array.
    """

    lengths: tuple[np.ndarray, ...]
    values: np.ndarray


def is_sparse_or_ragged(leaf: Any) -> bool:
    """Whether a leaf is a sparse or ragged tensor of SciPy, TensorFlow or JAX."""
    return is_sparse(leaf) or _is(leaf, "tensorflow", "RaggedTensor", "RaggedTensorValue")


def is_sparse(leaf: Any) -> bool:
    """Whether a leaf is a sparse tensor."""
    return _is(leaf, "scipy", *_SCIPY) or _is(leaf, "tensorflow", "SparseTensor", "SparseTensorValue") or _is_bcoo(leaf)


_SCIPY = ("_spbase", "spmatrix", "sparray")


def _is_bcoo(leaf: Any) -> bool:
    return _is(leaf, "jax", "JAXSparse")


def _is(leaf: Any, package: str, *names: str) -> bool:
    kinds = ((kind.__module__.split(".")[0], kind.__name__) for kind in type(leaf).__mro__)
    return any(module == package and name in names for module, name in kinds)


def on_host(leaf: Any) -> Any:
    """Returns a leaf of a batch as an array, or a sparse or ragged tensor as its arrays."""
    if isinstance(leaf, np.ndarray):
        return leaf
    if _is(leaf, "scipy", *_SCIPY):
        coo = leaf.tocoo()
        return SparseArray.of(np.stack([coo.row, coo.col], axis=1), coo.data, coo.shape)
    if _is(leaf, "tensorflow", "SparseTensor", "SparseTensorValue"):
        return SparseArray.of(*(np.asarray(part) for part in (leaf.indices, leaf.values, leaf.dense_shape)))
    if _is_bcoo(leaf):
        return SparseArray.of(*_coordinates(leaf), leaf.shape)
    if _is(leaf, "tensorflow", "RaggedTensor"):
        lengths = tuple(np.asarray(part) for part in leaf.nested_row_lengths())
        return RaggedArray(lengths, np.asarray(leaf.flat_values))
    if _is(leaf, "tensorflow", "RaggedTensorValue"):
        return _ragged_value(leaf)
    return np.asarray(leaf)


def _coordinates(leaf: Any) -> tuple[np.ndarray, np.ndarray]:
    """Returns the indices and values of a JAX tensor, without its padding."""
    if not hasattr(leaf, "indices") or leaf.n_batch or leaf.n_dense:
        raise UsageError(
            f"a batch holds a {type(leaf).__name__} with batch or dense dimensions",
            remedy="use a BCOO without them, such as jax.experimental.sparse.BCOO.fromdense(x)",
        )
    indices, values = np.asarray(leaf.indices), np.asarray(leaf.data)
    inside = (indices < np.asarray(leaf.shape)).all(axis=1)
    return indices[inside], values[inside]


def _ragged_value(leaf: Any) -> RaggedArray:
    lengths = []
    while hasattr(leaf, "row_splits"):
        lengths.append(np.diff(np.asarray(leaf.row_splits)))
        leaf = leaf.values
    return RaggedArray(tuple(lengths), np.asarray(leaf))


class Rows:
    """A sparse or ragged tensor that holds all samples, and can be indexed by rows.

    Args:
      leaf: The tensor; a sparse one has two dimensions.

    Raises:
      UsageError: A sparse tensor has another number of dimensions.
    """

    def __init__(self, leaf: Any) -> None:
        self._leaf = leaf
        if is_sparse(leaf):
            self._leaf = _as_csr(leaf)
        self.shape = (int(self._leaf.shape[0]),)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Any:
        """Returns some of the rows as arrays; for a slice, another `Rows`."""
        if isinstance(rows, slice):
            return Rows(self._leaf[rows])
        if hasattr(self._leaf, "tocoo"):
            return on_host(self._leaf[rows])
        import tensorflow as tf  # already loaded, as there is a ragged tensor

        return on_host(tf.gather(self._leaf, rows))


def _as_csr(leaf: Any) -> Any:
    if len(leaf.shape) != 2:
        raise UsageError(
            f"x is a sparse tensor of shape {tuple(leaf.shape)}, but one that holds all samples must be a matrix",
            remedy="pass a generator function, or a tf.data.Dataset, of sparse batches",
        )
    if hasattr(leaf, "tocsr"):
        return leaf.tocsr()
    from scipy import sparse  # Keras needs it for sparse tensors, too

    host = on_host(leaf)
    return sparse.coo_matrix((host.values, tuple(host.indices.T)), shape=host.like.shape[1:]).tocsr()


def first_samples(tree: Any, count: int) -> Any:
    """Returns the first samples of a batch as plain arrays: sparse ones dense, ragged ones padded."""
    if isinstance(tree, SparseArray):
        dense = np.zeros(tree.like.shape[1:], tree.values.dtype)
        np.add.at(dense, tuple(tree.indices.T), tree.values)
        return dense[:count]
    if isinstance(tree, RaggedArray):
        return _padded(tree.lengths, tree.values)[:count]
    if isinstance(tree, dict):
        return {key: first_samples(part, count) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [first_samples(part, count) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return None if tree is None else tree[:count]


def _padded(lengths: tuple[np.ndarray, ...], values: np.ndarray) -> np.ndarray:
    for length in reversed(lengths):
        widest = int(length.max(initial=0))
        padded = np.zeros((len(length), widest, *values.shape[1:]), values.dtype)
        padded[np.arange(widest) < length[:, None]] = values
        values = padded
    return values
