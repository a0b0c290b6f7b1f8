"""How the variables that a step changes on several processes become one state again.

Every process starts a step with the same state and works on its own samples. Weights and optimizers stay the same
everywhere, since the gradients are summed first. Everything else that a step changes is merged at its end by a rule:

| what | rule |
|---|---|
| sums of a window; the variables of Keras's metrics, which are all sums | the changes are added |
| the steps until a loss is not finite | the smallest |
| moving statistics, and other numbers that are not trained | the mean, by samples |
| integers, and variables with `aggregation="only_first_replica"` | those of the first process |

A metric that is not Keras's own may keep anything: a minimum, a median, a list. It is updated with the arguments of all
processes, joined, and so has the same variables everywhere, those that one process alone would have.
"""

import enum
from collections.abc import Iterable, Iterator, Mapping, Sequence

import keras

from everstep.engine.window import WindowSums
from everstep.errors import UsageError


class Rule(enum.Enum):
    """How the values of a variable on several processes are merged."""

    ADD = "the changes are added to the old value"
    SUM_OF_NEW = "the new values are added, the old value is dropped"
    SMALLEST = "the smallest value"
    MEAN = "the mean, by samples"
    FIRST = "the value of the first process"


_DECLARED = {"sum": Rule.ADD, "mean": Rule.MEAN, "only_first_replica": Rule.FIRST}


def rules(
    variables: Mapping[str, keras.Variable],
    window: WindowSums,
    others: Sequence[WindowSums],
    alike: Iterable[keras.Variable],
) -> list[tuple[keras.Variable, Rule]]:
    """Returns the variables to merge after a step, and how.

    Args:
      variables: All variables of the run, by key.
      window: The window that the step adds to.
      others: The windows of other steps, which this one leaves unchanged.
      alike: Variables that are the same on every process without being merged.
    """
    own = {id(variable): rule for variable, rule in _window_rules(window)}
    changed = {id(variable) for variable in window.variables}
    ignored = {id(variable) for other in others for variable in other.variables} - changed
    ignored |= {id(variable) for variable in alike}
    merged = []
    for variable in variables.values():
        if id(variable) in own:
            merged.append((variable, own[id(variable)]))
        elif not variable.trainable and id(variable) not in ignored and variable.name != "seed_generator_state":
            is_float = "float" in str(variable.dtype)
            merged.append((variable, _DECLARED.get(variable.aggregation, Rule.MEAN if is_float else Rule.FIRST)))
    return merged


def _window_rules(window: WindowSums) -> Iterator[tuple[keras.Variable, Rule]]:
    sums = Rule.SUM_OF_NEW if window.reduction == "last" else Rule.ADD
    for variable in (*window.totals.values(), window.samples):
        yield variable, sums
    if window.finite_steps is not None:
        yield window.finite_steps.count, Rule.SMALLEST


def own_weights(layers: Iterable[keras.Layer]) -> list[keras.Variable]:
    """Returns the weights that layers have created as trainable, also frozen ones."""
    return [variable for layer in layers for variable in layer._trainable_variables]


def refuse_states_of_samples(layers: Iterable[keras.Layer]) -> None:
    """Refuses layers that keep a state for each sample of a batch: every process has other samples.

    Raises:
      UsageError: There is one; names it.
    """
    for layer in layers:
        if getattr(layer, "stateful", False) is True:
            raise UsageError(
                "is stateful: it keeps a state for each sample of a batch, and every process has other samples",
                key=f"layer {layer.name!r}",
                remedy="set stateful=False, or train with one process",
            )


def joining_metrics(metrics: Iterable[keras.Metric]) -> list[keras.Metric]:
    """Returns those metrics, and metrics inside them, that are not sums as Keras's own are."""
    metrics_by_id: dict[int, keras.Metric] = {}
    for metric in metrics:
        for part in (metric, *getattr(metric, "metrics", ())):
            if not type(part).update_state.__module__.startswith("keras."):
                metrics_by_id[id(part)] = part
    return list(metrics_by_id.values())
