"""Flags of absl and TF Model Garden: spelled differently here, ignored, or not offered."""

from collections.abc import Iterator, Sequence

_SWITCHES = {"--alsologtostderr", "--logtostderr", "--showprefixforinfo"}
_VALUED = {"--v", "--verbosity", "--stderrthreshold"}


def normalised(words: Sequence[str]) -> list[str]:
    """Returns a command line as the parser expects it.

        normalised(["train", "--model_dir=my_dir", "--alsologtostderr"])  # ["train", "--model-dir=my_dir"]

    Underscores in the name of an option become dashes; its value, and everything after a lone `--`, stays as
    it is. Flags of absl's logging are dropped, with their values.
    """
    words = list(words)
    end = words.index("--") if "--" in words else len(words)
    return [*_spelled(words[:end]), *words[end:]]


def _spelled(words: Sequence[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in _VALUED and not equals:
            next(rest, None)
        elif name in _VALUED or _is_switch(name):
            continue
        elif name.startswith("--"):
            yield name.replace("_", "-") + equals + value
        else:
            yield word


def _is_switch(name: str) -> bool:
    """Returns whether it is one of absl's on-off flags, negated or not: `--noalsologtostderr`."""
    return name in _SWITCHES or (name.startswith("--no") and f"--{name[4:]}" in _SWITCHES)


DECLINED = {
    "tpu": "set runtime.distribution_strategy=tpu, and runtime.tpu=NAME where it is not this machine's",
    "tpu_platform": "nothing reads it in Model Garden's training programs either: leave it out",
    "tfhub_handle": "nothing reads it in Model Garden's training programs either; the trained model is in export/",
    "tflex_output_uri": "nothing reads it in Model Garden's training programs either: leave it out",
    "tf_data_service": "a tf.data service gives batches to any worker: no run on it could be resumed exactly",
    "pretrain_steps": "belongs to the mode continuous_train_and_eval, which does not exist: set task.init_checkpoint",
    "enable_async_checkpointing": "checkpoints are always written in the background: leave it out",
}
"""Each flag of Model Garden's programs that is not offered, and what there is instead."""


def why_declined(option: str) -> str:
    """Returns why an option such as `--tpu-platform` is not offered; empty for one that no program has."""
    return DECLINED.get(option.lstrip("-").replace("-", "_"), "")
