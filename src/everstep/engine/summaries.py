"""`tf.summary` inside a step: refused, for what nobody records would be lost without a word."""

import contextlib

import tensorflow as tf

from everstep.errors import UsageError


class _RefusedSummaries(tf.summary.SummaryWriter):
    """Takes the place of the writer that there is not; what is written to it is an error."""

    @property
    def _resource(self) -> None:  # asked for by every function of tf.summary that writes
        raise UsageError(
            "tf.summary is called in a step, where nothing records it: return the scalar from train_step or "
            "validation_step, {self.loss: loss, 'name': value}, and it is logged; or set a writer of your own as the "
            "default, with tf.summary.create_file_writer(folder).as_default(): …"
        )

    def flush(self) -> None:
        """Has nothing to write."""


def summaries_refused() -> contextlib.AbstractContextManager[None]:
    """Inside the block `tf.summary` raises UsageError, unless somebody has set a writer to write to."""
    if bool(tf.summary.should_record_summaries()):
        return contextlib.nullcontext()
    refusing: contextlib.AbstractContextManager[None] = _RefusedSummaries().as_default(step=0)
    return refusing
