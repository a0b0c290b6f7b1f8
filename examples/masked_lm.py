"""Masked language modelling in the shape of a TF Model Garden task: configs, a data loader, steps, an experiment.

    python examples/masked_lm.py --backend jax

Ported by changing its imports, and with `value_and_grad` in place of a tape, so that it runs on every backend. The
text is generated: numbers that grow by the same amount, a few of them masked. Keras 3 does not pick a model's inputs
out of a larger dict, as Keras 2 did, so the steps do.
"""

import argparse
import dataclasses

import numpy as np

import everstep as cfg
from everstep.config import bind, get_exp_config, get_task
from everstep.config import register_experiment as register_config_factory
from everstep.config import register_task as register_task_cls
from everstep.engine import backend
from everstep.recipes.transformer_config import TransformerConfig

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", choices=backend.installed())
parser.add_argument("--model-dir", help="by default runs/masked-lm-BACKEND; a second run resumes there")
args = parser.parse_args()
name = backend.select(args.backend)  # before anything imports Keras
model_dir = args.model_dir or f"runs/masked-lm-{name}"

import keras  # noqa: E402
from keras import ops  # noqa: E402

from everstep.recipes.transformer import transformer  # noqa: E402

MASK, VOCABULARY = 0, 21


@dataclasses.dataclass
class PretrainDataConfig(cfg.DataConfig):
    seq_length: int = 12
    max_predictions_per_seq: int = 3
    num_examples: int = 4096


@bind(PretrainDataConfig)
def load_pretraining_data(params, input_context=None):
    draw = np.random.default_rng(0 if params.is_training else 1)
    count, length = params.num_examples, params.seq_length
    start, stride = draw.integers(0, 20, (count, 1)), draw.integers(1, 4, (count, 1))
    tokens = 1 + (start + stride * np.arange(length)) % (VOCABULARY - 1)
    positions = draw.permuted(np.tile(np.arange(length), (count, 1)), axis=1)[:, : params.max_predictions_per_seq]
    ids, words = np.take_along_axis(tokens, positions, axis=1), tokens.copy()
    np.put_along_axis(words, positions, MASK, axis=1)
    whole = {"input_word_ids": words, "masked_lm_positions": positions, "masked_lm_ids": ids}
    return {n: v.astype("int32") for n, v in whole.items()} | {"masked_lm_weights": np.ones(ids.shape, "float32")}


@dataclasses.dataclass
class MaskedLMConfig(cfg.TaskConfig):
    model: TransformerConfig = TransformerConfig(width=32, depth=2, heads=4, hidden=64)
    train_data: PretrainDataConfig = PretrainDataConfig(global_batch_size=64, is_training=True)
    validation_data: PretrainDataConfig = PretrainDataConfig(num_examples=512, is_training=False)


@register_task_cls(MaskedLMConfig)
class MaskedLMTask(cfg.Task):
    def build_model(self):
        data = self.task_config.train_data
        lengths = data.seq_length, data.max_predictions_per_seq
        words, positions = (keras.Input((length,), dtype="int32") for length in lengths)
        logits = transformer(VOCABULARY, data.seq_length, self.task_config.model, causal=False)(words)
        chosen = ops.take_along_axis(logits, ops.expand_dims(positions, -1), axis=1)
        return keras.Model({"input_word_ids": words, "masked_lm_positions": positions}, {"mlm_logits": chosen})

    def build_inputs(self, params, input_context=None):
        return params.BUILDER(params, input_context)

    def build_losses(self, labels, model_outputs, metrics, aux_losses=None):
        weights, logits = labels["masked_lm_weights"], model_outputs["mlm_logits"]
        losses = keras.losses.sparse_categorical_crossentropy(labels["masked_lm_ids"], logits, from_logits=True)
        loss = ops.sum(losses * weights) / ops.maximum(ops.sum(weights), 1e-5)
        metrics[1].update_state(loss)
        return loss + sum(aux_losses or [])

    def build_metrics(self, training=None):
        return [keras.metrics.SparseCategoricalAccuracy("masked_lm_accuracy"), keras.metrics.Mean("lm_example_loss")]

    def process_metrics(self, metrics, labels, model_outputs):
        weights, logits = labels["masked_lm_weights"], model_outputs["mlm_logits"]
        metrics[0].update_state(labels["masked_lm_ids"], logits, weights)

    def train_step(self, inputs, model, optimizer, metrics):
        def loss_fn():
            outputs = model({name: inputs[name] for name in model.input}, training=True)
            return self.build_losses(inputs, outputs, metrics, aux_losses=model.losses), outputs

        (loss, outputs), grads = cfg.value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        self.process_metrics(metrics, inputs, outputs)
        return {self.loss: loss}

    def inference_step(self, inputs, model):
        return model({name: inputs[name] for name in model.input}, training=False)

    def validation_step(self, inputs, model, metrics):
        outputs = self.inference_step(inputs, model)
        loss = self.build_losses(inputs, outputs, metrics, aux_losses=model.losses)
        self.process_metrics(metrics, inputs, outputs)
        return {self.loss: loss}


@register_config_factory("masked_lm/tiny")
def masked_lm_tiny() -> cfg.ExperimentConfig:
    rate = {"learning_rate": {"type": "constant", "constant": {"learning_rate": 3e-3}}}
    trainer = cfg.TrainerConfig(train_steps=250, steps_per_loop=50, optimizer_config=cfg.OptimizationConfig(rate))
    return cfg.ExperimentConfig(task=MaskedLMConfig(), trainer=trainer)


params, mode = get_exp_config("masked_lm/tiny"), "train_and_eval"
_, logs = cfg.run_experiment(get_task(params.task), params, model_dir, mode, export=False, verbose=False)
print(f"accuracy of masked tokens: {logs['masked_lm_accuracy']:.4f}")
