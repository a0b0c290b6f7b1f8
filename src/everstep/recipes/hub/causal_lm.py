"""The task of `hub/causal_lm`: a KerasHub language model, trained whole or by adapters, on padded or packed texts."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from everstep.data.text import make_tokenizer, text_stream
from everstep.engine import greedy, keras_hub, not_found
from everstep.errors import UsageError
from everstep.recipes.hub.packing import documents, keep_apart
from everstep.recipes.hub.presets import check_preset, load_model
from everstep.recipes.hub.training_parts import choose_trained
from everstep.task import GenerationConfig, LanguageModelTask, continue_tokens, host_logits, tokens_of
from everstep.types import Batch

KIND = "CausalLM"


class CausalLMTask(LanguageModelTask):
    """Predicts the next token of texts with the model of a preset.

    Batches are `(inputs, labels)`: `inputs` has `token_ids` and `padding_mask`, and for packed rows also `segment_ids`
    and `positions` (`everstep.recipes.hub.packing`). Labels are the next tokens, -1 where none is wanted.
    """

    _tokenizer: Any = None
    _context: int | None = None
    _vocabulary: int | None = None

    def build_model(self) -> keras.Model:
        """Returns the model of the preset, with adapters if configured."""
        model = load_model(KIND, self.task_config, compile=False)
        if model.preprocessor is None:
            raise UsageError("has no tokenizer", key="task.preset", received=self.task_config.preset)
        choose_trained(model, self.task_config)
        self._read(model.backbone, model.preprocessor)
        if self._packs:
            keep_apart(model)
        return model

    def base_weights(self) -> str:
        """Returns the preset, which provides the weights that are not trained."""
        return self.task_config.preset if self.task_config.load_weights else ""

    @property
    def _packs(self) -> bool:
        config = self.task_config
        return any(getattr(data, "packing", False) for data in (config.train_data, config.validation_data))

    def _read(self, backbone: Any, preprocessor: Any) -> None:
        """Keeps what the data needs to know: the tokenizer, the longest row, the vocabulary."""
        self._tokenizer = preprocessor.tokenizer
        self._context = int(getattr(backbone, "max_sequence_length", None) or preprocessor.sequence_length)
        self._vocabulary = int(backbone.vocabulary_size)

    @property
    def tokenizer(self) -> Any:
        """KerasHub's tokenizer of the preset."""
        if self._tokenizer is None:  # nobody has built a model yet
            preset = check_preset(KIND, self.task_config.preset)
            with not_found():
                models = keras_hub().models
                preprocessor = models.CausalLMPreprocessor.from_preset(preset)
                self._read(models.Backbone.from_preset(preset, load_weights=False), preprocessor)
        return self._tokenizer

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a prompt, with the start token if the model has one."""
        tokens = np.asarray(self.tokenizer(text)).tolist()
        start = getattr(self.tokenizer, "start_token_id", None)
        return tokens if start is None else [start, *tokens]

    def decode(self, tokens: Sequence[int]) -> str:
        """Returns the text of tokens, without special ones."""
        special = set(self.tokenizer.special_token_ids)
        return str(self.tokenizer.detokenize([int(token) for token in tokens if token not in special]))

    @property
    def stop_token(self) -> int | None:
        """The token that ends a text."""
        return getattr(self.tokenizer, "end_token_id", None)

    def continue_prompts(
        self, model: keras.Model, prompts: Sequence[Sequence[int]], config: GenerationConfig | None = None
    ) -> list[list[int]]:
        """Returns the tokens that the model writes after the tokens of each prompt.

        The most likely tokens are found by KerasHub, which keeps what attention has computed for the tokens before.
        Others are drawn from the model's logits, the same on every backend.
        """
        config = config or self.generation
        longest = max(map(len, prompts), default=0) + config.max_tokens
        context = min(longest, self._context or longest)
        if not config.temperature and all(0 < len(prompt) < context for prompt in prompts):
            return greedy(model, prompts, context, config.max_tokens, self.stop_token)

        def logits_of(rows: np.ndarray) -> np.ndarray:
            return host_logits(model, {"token_ids": rows, "padding_mask": np.ones_like(rows)})

        return continue_tokens(logits_of, prompts, context, config, self.stop_token)

    def _chunked_loss(self, inputs: Batch, model: keras.Model, training: bool) -> tuple[Any, Any]:
        features, *rest = self.unpack(inputs)
        with documents(features) as own:
            return super()._chunked_loss((own, *rest), model, training)

    def check_batch(self, inputs: Batch) -> None:
        """Refuses tokens, and labels, that are not in the model's vocabulary."""
        features, *rest = inputs if isinstance(inputs, tuple | list) else (inputs,)
        super().check_batch((tokens_of(features), *rest))

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the texts that `params` name, as batches of tokens."""
        if params.tokenizer:
            reason = "the preset has its own, and the model knows no other"
            raise UsageError(reason, key="tokenizer", received=params.tokenizer, remedy="leave it empty")
        tokenizer = make_tokenizer("", self.tokenizer)
        with not_found():
            return text_stream(params, tokenizer, context=self._context or 0, vocabulary=self._vocabulary)
