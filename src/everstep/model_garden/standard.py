"""`StandardTrainer` and `StandardEvaluator`: loops over user-defined steps, with orbit's names, for a `Controller`.

    class MyTrainer(StandardTrainer):
        def train_step(self, iterator): ...
        def train_loop_end(self): return {"loss": self.loss.result()}

    controller = Controller(trainer=MyTrainer(dataset), global_step=optimizer.iterations, steps_per_loop=100)

They are for existing code. A `Task` offers more: it runs on every backend, and its data resumes at its position. Here
data starts from its beginning in each process. On TensorFlow steps over `tf.data` are compiled; elsewhere they run
eagerly.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any

from everstep.data import nest
from everstep.engine import custom_loops
from everstep.errors import UsageError


@dataclasses.dataclass(frozen=True)
class StandardTrainerOptions:
    """How a training loop runs on TensorFlow.

    Attributes:
      use_tf_function: Whether steps are compiled.
      use_tf_while_loop: Whether the loop around them is compiled with them.
      use_tpu_summary_optimization: Not supported; must be False.
    """

    use_tf_function: bool = True
    use_tf_while_loop: bool = True
    use_tpu_summary_optimization: bool = False


@dataclasses.dataclass(frozen=True)
class StandardEvaluatorOptions:
    """How an evaluation loop runs on TensorFlow.

    Attributes:
      use_tf_function: Whether steps are compiled.
      use_tf_while_loop: Not supported; must be False: the outputs of each step are reduced outside the compiled step.
      recreate_iterator_for_each_eval: Whether each evaluation starts at the beginning of the data.
    """

    use_tf_function: bool = True
    use_tf_while_loop: bool = False
    recreate_iterator_for_each_eval: bool = True


class StandardTrainer(abc.ABC):
    """Calls `train_loop_begin`, then `train_step(iterator)` step by step, then `train_loop_end`, whose logs it returns.

    Args:
      train_dataset: An iterable of batches, or lists and dicts of such.
      options: See `StandardTrainerOptions`.
    """

    def __init__(self, train_dataset: Any, options: StandardTrainerOptions | None = None) -> None:
        options = options or StandardTrainerOptions()
        if options.use_tf_while_loop and not options.use_tf_function:
            raise UsageError("needs use_tf_function=True", key="use_tf_while_loop", received=True)
        if options.use_tpu_summary_optimization:
            raise UsageError(
                "but steps write no summaries", key="use_tpu_summary_optimization", received=True, remedy="remove it"
            )
        self._train_options, self._train_dataset = options, train_dataset
        self._train_iter: Any = None
        self._train_loop: Callable[[Any, int], None] | None = None

    def train(self, num_steps: int) -> Any:
        """Runs `num_steps` steps; returns what `train_loop_end` returns."""
        self.train_loop_begin()
        if self._train_iter is None:
            self._train_iter = nest.map_leaves(iter, self.train_dataset)
        if self._train_loop is None:
            self._train_loop = self._make_loop()
        self._train_loop(self._train_iter, num_steps)
        return self.train_loop_end()

    def _make_loop(self) -> Callable[[Any, int], None]:
        compiled = self._train_options.use_tf_function and custom_loops.can_compile(self.train_dataset)
        if compiled and self._train_options.use_tf_while_loop:
            return custom_loops.compiled_loop(self.train_step)
        step = custom_loops.compiled(self.train_step) if compiled else self.train_step

        def loop(iterator: Any, num_steps: int) -> None:
            for _ in range(num_steps):
                step(iterator)

        return loop

    def train_loop_begin(self) -> None:  # noqa: B027
        """Called before the steps; the place to reset metrics."""

    @abc.abstractmethod
    def train_step(self, iterator: Any) -> Any:
        """Trains one step, on the next batch of the iterator."""

    def train_loop_end(self) -> Any:  # noqa: B027
        """Called after the steps; returns the logs, or None."""

    @property
    def train_dataset(self) -> Any:
        """The data; after setting it, training continues from the beginning of the new data."""
        return self._train_dataset

    @train_dataset.setter
    def train_dataset(self, train_dataset: Any) -> None:
        self._train_dataset, self._train_iter, self._train_loop = train_dataset, None, None


class StandardEvaluator(abc.ABC):
    """Calls `eval_begin`, then `eval_step` and `eval_reduce` for each batch, then `eval_end`, whose logs it returns.

    Args:
      eval_dataset: An iterable of batches, or lists and dicts of such.
      options: See `StandardEvaluatorOptions`.
    """

    def __init__(self, eval_dataset: Any, options: StandardEvaluatorOptions | None = None) -> None:
        options = options or StandardEvaluatorOptions()
        if options.use_tf_while_loop:
            raise UsageError(
                "but eval_reduce is called step by step", key="use_tf_while_loop", received=True, remedy="remove it"
            )
        self._eval_options, self._eval_dataset = options, eval_dataset
        self._eval_iter: Any = None
        self._eval_step: Callable[[Any], Any] | None = None

    def evaluate(self, num_steps: int) -> Any:
        """Evaluates `num_steps` batches, -1 for all; returns what `eval_end` returns."""
        state = self.eval_begin()
        if self._eval_iter is None or self._eval_options.recreate_iterator_for_each_eval:
            self._eval_iter = nest.map_leaves(iter, self.eval_dataset)
        if self._eval_step is None:
            compiled = self._eval_options.use_tf_function and custom_loops.can_compile(self.eval_dataset)
            self._eval_step = custom_loops.compiled(self.eval_step) if compiled else self.eval_step
        done = 0
        while done != num_steps:
            try:
                outputs = self._eval_step(self._eval_iter)
            except custom_loops.ends():
                break
            state, done = self.eval_reduce(state, outputs), done + 1
        if done < num_steps:
            raise UsageError(
                f"the data ended after {done} of {num_steps} batches",
                key="eval_dataset",
                remedy="evaluate fewer, or -1 for all",
            )
        return self.eval_end() if state is None else self.eval_end(state)

    def eval_begin(self) -> Any:  # noqa: B027
        """Called before the steps; the place to reset metrics. Returns the first state of `eval_reduce`."""

    @abc.abstractmethod
    def eval_step(self, iterator: Any) -> Any:
        """Evaluates the next batch of the iterator, whose end ends the evaluation."""

    def eval_reduce(self, state: Any = None, step_outputs: Any = None) -> Any:  # noqa: B027
        """Folds the outputs of a step into the state."""

    def eval_end(self, *args: Any) -> Any:  # noqa: B027
        """Called after the steps, with the state if there is one; returns the logs, or None."""

    @property
    def eval_dataset(self) -> Any:
        """The data; after setting it, evaluation starts at the beginning of the new data."""
        return self._eval_dataset

    @eval_dataset.setter
    def eval_dataset(self, eval_dataset: Any) -> None:
        self._eval_dataset, self._eval_iter, self._eval_step = eval_dataset, None, None
