"""Flags that TF Model Garden's programs have and `everstep train` has not, and what there is instead."""

DECLINED = {
    "tpu": "set runtime.distribution_strategy=tpu, and runtime.tpu=NAME where it is not this machine's",
    "tpu_platform": "nothing reads it in Model Garden's training programs either: leave it out",
    "tfhub_handle": "nothing reads it in Model Garden's training programs either; what is trained lies in export/",
    "tflex_output_uri": "nothing reads it in Model Garden's training programs either: leave it out",
    "tf_data_service": "a tf.data service hands batches to whoever asks first: no run on it could be resumed exactly",
    "pretrain_steps": "belongs to the mode continuous_train_and_eval, which there is not: set task.init_checkpoint",
    "enable_async_checkpointing": "checkpoints are always written in the background: leave it out",
}
"""Each flag, as it is spelled there, and what to tell somebody who gives it."""


def reason(option: str) -> str:
    """Returns what to tell about an option such as `--tpu-platform`; nothing about one that nobody has."""
    return DECLINED.get(option.lstrip("-").replace("-", "_"), "")
