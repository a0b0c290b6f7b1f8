"""Records through a user's functions to batches, as one `tf.data` pipeline per epoch.

The order of operations, which is TF Model Garden's:

    read -> shuffle (training, not cached) -> decode -> combine -> sample -> parse -> filter
         -> cache (then shuffle, in training) -> batch -> postprocess
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from everstep.data import order, passes, tf_pipeline
from everstep.data.passes import Source

Function = Callable[..., Any]
_ON_TENSORS = ("decode", "parse", "filter", "postprocess")
_GIGABYTE = 2**30


@dataclasses.dataclass(frozen=True)
class Hooks:
    """A user's functions, each optional; `InputReader` says what each one gets and returns."""

    decode: Function | None = None
    combine: Function | None = None
    sample: Function | None = None
    parse: Function | None = None
    filter: Function | None = None
    transform_and_batch: Function | None = None
    postprocess: Function | None = None

    @property
    def one_to_one(self) -> bool:
        """Whether every record becomes one sample."""
        return not (self.combine or self.sample or self.filter)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to read, every choice made; see `DataConfig`."""

    batch_size: int
    drop_remainder: bool = False
    shuffle: bool = False
    shuffle_buffer: int = 0
    seed: int = 0
    repeat: bool = False
    cache: bool = False
    prefetch: int | None = None
    ram_budget: int | None = None
    autotune_algorithm: str | None = None


class InputPipeline:
    """Makes the pipeline of an epoch; its order follows from (seed, epoch).

    Args:
      tf: The module `tensorflow`.
      sources: What to read; a dict of sources where `hooks.combine` makes one of several.
      hooks: A user's functions.
      reading: How to read.
      input_context: Handed on to `hooks.transform_and_batch`.
    """

    def __init__(
        self, tf: Any, sources: Source | Mapping[str, Source], hooks: Hooks, reading: Reading, input_context: Any
    ):
        self._tf, self._sources, self._reading, self._context = tf, sources, reading, input_context
        self._hooks = hooks
        # Compiled here, once: every epoch's pipeline would trace them again.
        self._functions = {name: tf.function(fn) for name in _ON_TENSORS if (fn := getattr(hooks, name)) is not None}
        self._drawing: dict[str, bool] = {}
        self._cached = self._in_memory() if reading.cache else None
        self.unshuffled = self.batches(0, 0, shuffle=False)
        """Epoch 0 in the order of the files: shows what the pipeline is made of."""

    def batches(self, epoch: int, skipped: int, *, shuffle: bool = True) -> Any:
        """Returns the epoch's batches as a dataset.

        Args:
          epoch: Which one.
          skipped: How many batches at its start to leave out; read raw, not computed, where that is the same.
          shuffle: False leaves out the shuffle buffer.
        """
        early = self._skips_samples()
        skipped_samples = skipped * self._reading.batch_size if early else 0
        batches = self._mapped("postprocess", self._batched(self._samples(epoch, skipped_samples, shuffle)))
        return self._with_options(batches if early else batches.skip(skipped))

    def _skips_samples(self) -> bool:
        """Whether samples can be skipped before they are computed: nothing then counts or draws differently."""
        if self._hooks.transform_and_batch or self._drawing.get("postprocess"):
            return False
        if self._reading.cache:
            return True
        return self._hooks.one_to_one and not any(self._drawing.get(name) for name in ("decode", "parse"))

    def _samples(self, epoch: int, skipped: int, shuffle: bool) -> Any:
        if self._cached is None:
            return self._parsed(self._read(epoch, skipped, shuffle))
        if shuffle and self._reading.shuffle and self._reading.shuffle_buffer:
            seeds = passes.seeds(order.generator(self._reading.seed, epoch))
            return passes.shuffled(self._tf, self._cached, self._reading.shuffle_buffer, *seeds).skip(skipped)
        return self._cached.skip(skipped)

    def _in_memory(self) -> Any:
        """Returns the parsed samples, kept once they were all read; always read in the order of epoch 0."""
        return self._with_options(self._parsed(self._read(0, 0, shuffle=False))).cache()

    def _read(self, epoch: int, skipped: int, shuffle: bool) -> Any:
        random = order.generator(self._reading.seed, epoch) if self._reading.shuffle else None
        if isinstance(self._sources, Source):
            records = self._sources.records(random)
            return (self._shuffled(records, random) if shuffle else records).skip(skipped)
        return {name: self._part(self._sources[name], random, shuffle) for name in sorted(self._sources)}

    def _part(self, source: Source, random: np.random.Generator | None, shuffle: bool) -> Any:
        """Returns one source of several. In training it has no end: how much of it is taken, `combine` decides."""
        records = source.records(random)
        if random is None or self._reading.cache or not self._reading.repeat:
            return self._shuffled(records, random) if shuffle else records
        if not shuffle or not self._reading.shuffle_buffer:
            return records.repeat()
        return passes.without_end(self._tf, records, self._reading.shuffle_buffer, *passes.seeds(random))

    def _shuffled(self, records: Any, random: np.random.Generator | None) -> Any:
        if random is None or self._reading.cache or not self._reading.shuffle_buffer:
            return records
        return passes.shuffled(self._tf, records, self._reading.shuffle_buffer, *passes.seeds(random))

    def _parsed(self, records: Any) -> Any:
        samples = self._mapped("parse", self._sampled(self._decoded(records)))
        return samples.filter(self._functions["filter"]) if self._hooks.filter else samples

    def _decoded(self, records: Any) -> Any:
        if not self._hooks.combine or not isinstance(records, dict):
            return self._mapped("decode", records)
        return self._hooks.combine({name: self._mapped("decode", part) for name, part in records.items()})

    def _sampled(self, decoded: Any) -> Any:
        return decoded.apply(self._hooks.sample) if self._hooks.sample else decoded

    def _batched(self, samples: Any) -> Any:
        if self._hooks.transform_and_batch:
            return self._hooks.transform_and_batch(samples, self._context)
        return samples.batch(self._reading.batch_size, drop_remainder=self._reading.drop_remainder)

    def _mapped(self, name: str, dataset: Any) -> Any:
        """Returns the dataset passed through a user's function, in parallel unless it draws random numbers."""
        function = self._functions.get(name)
        if function is None:
            return dataset
        if name not in self._drawing:
            self._drawing[name] = self._draws(function, dataset.element_spec)
        if self._drawing[name]:
            return dataset.map(function)
        return dataset.map(function, num_parallel_calls=self._tf.data.AUTOTUNE, deterministic=True)

    def _draws(self, function: Any, spec: Any) -> bool:
        arguments = spec if type(spec) is tuple else (spec,)
        return any(tf_pipeline.draws(self._tf, function.get_concrete_function(*arguments).graph))

    def _with_options(self, dataset: Any) -> Any:
        options = self._tf.data.Options()
        options.deterministic = True
        if self._reading.ram_budget is not None:
            options.autotune.ram_budget = self._reading.ram_budget * _GIGABYTE
        if self._reading.autotune_algorithm is not None:
            algorithms = self._tf.data.experimental.AutotuneAlgorithm
            options.autotune.autotune_algorithm = algorithms[self._reading.autotune_algorithm]
        return dataset.with_options(options)
