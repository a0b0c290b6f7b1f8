"""Errors of the loop below, in the words of those who call `Training`: by its arguments, in Python, on one line."""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator

from everstep.data.files import first_line
from everstep.errors import TrainingError, UsageError

DATA = "data"

_KEYS = {
    "task.optimizer": "optimizer",
    "task.loss_weights": "loss_weights",
    "task.loss": "loss",
    "task.model": "model",
    "task.steps_per_epoch": "steps_per_epoch",
    "task.train_records": "train_ds",
    "task.valid_records": "valid_ds",
    "task.train_data": "train_ds",
    "task.validation_data": "valid_ds",
    "trainer.validation_steps": "validation_steps",
    "runtime.seed": "seed",
    "runtime.backend": "backend",
}
"""What the loop calls something, and what its user does."""

_PHRASES = (
    (r", or set trainer\.recovery_max_trials to leave out batches", ""),
    (
        r"repeat it \(dataset\.repeat\(\), or task\.train_data\.repeat=true\) or lower trainer\.train_steps",
        "repeat it (dataset.repeat()), or lower steps_per_epoch or epochs",
    ),
    (r"task(_config)?\.train_data\.global_batch_size", "the batch size of train_ds"),
    (r"trainer\.validation_steps: received -1\b", "validation_steps: received None"),
    (r"\bdata \(--allow-change data\)", "--allow-change data"),
    (r" *\(in Python: allow_change=\[[^\]]*\]\)", ""),
    (r"^--allow-change: ", "allow_change: "),
    (r"^[xy]: (the samples|the labels|received)", r"train_ds, valid_ds: \1"),
)

_MISFITS = {
    "No loss to compute": "loss: received None, and the model has none of its own",
}
"""By these words of Keras one knows what does not fit."""

_LINES = 6

NAMES = {DATA, *_KEYS.values()}
"""What `allow_change` may hold; parts of them too, such as `optimizer.learning_rate`."""


@contextlib.contextmanager
def own_words() -> Iterator[None]:
    """Inside the block errors speak of `Training`'s arguments; they stay what they are."""
    try:
        yield
    except (UsageError, TrainingError) as error:
        text = spoken(str(error))
        if text == str(error):
            raise
        raise (UsageError if isinstance(error, UsageError) else TrainingError)(text) from error
    except ValueError as error:
        misfit = next((said for words, said in _MISFITS.items() if words in str(error)), None)
        if misfit is None:
            raise
        raise UsageError(f"{misfit}: {first_line(error)}") from error


def spoken(text: str) -> str:
    """Returns an error's text in one line, with the names and the form that the user knows."""
    for pattern, words in _PHRASES:
        text = re.sub(pattern, words, text)
    for key, name in _KEYS.items():
        text = re.sub(rf"(?<![\w.]){re.escape(key)}\b", name, text)
    return re.sub(r"--allow-change \S+(?: --allow-change \S+)*", _in_python, _in_one_line(text))


def core_keys(keys: Iterable[str]) -> list[str]:
    """Returns keys of `Training`'s as the loop has them; those of the loop stay. `data` is all that is trained on."""
    return [core for key in keys for core in _core(key)]


def _core(key: str) -> list[str]:
    root, dot, rest = key.partition(".")
    if root in (DATA, "train_ds"):
        return [DATA, "task.train_records"]
    return [f"{core}{dot}{rest}" for core, name in _KEYS.items() if name == root] or [key]


def _in_python(flags: re.Match[str]) -> str:
    """Spells options as Python does; several keys of one argument are that argument."""
    named = flags[0].split()[1::2]
    roots = [name.partition(".")[0] for name in named]
    keys = [root if roots.count(root) > 1 else name for root, name in zip(roots, named, strict=True)]
    keys = [DATA if root == "train_ds" else key for root, key in zip(roots, keys, strict=True)]
    return f"allow_change={json.dumps(list(dict.fromkeys(keys)))}"


def _in_one_line(text: str) -> str:
    lines = [line.strip() for line in text.split("\n")]
    if len(lines) > _LINES + 2:
        lines = [*lines[: _LINES + 1], f"and {len(lines) - _LINES - 2} more", lines[-1]]
    joined = lines[0]
    for line in lines[1:]:
        joined += f" {line}" if joined.endswith(":") else f"; {line}"
    return joined
