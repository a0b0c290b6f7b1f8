"""A task with a train step of its own: label smoothing, noisy pixels and a slowly moving teacher.

    python examples/custom_step.py --backend jax

The step is ordinary Keras code; it runs compiled on every backend. The teacher and the seed live in attributes of
the task, so they are saved with the run: kill it, run it again, and it resumes.
"""

import argparse

import numpy as np

import everstep as es
from everstep.engine import backend
from everstep.recipes.mnist_data import load_mnist

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", choices=backend.installed(), help="default: KERAS_BACKEND, else what is installed")
parser.add_argument("--model-dir", help="by default runs/custom-step-BACKEND; a second run resumes there")
args = parser.parse_args()
name = backend.select(args.backend)  # before anything imports Keras
model_dir = args.model_dir or f"runs/custom-step-{name}"

import keras  # noqa: E402
from keras import layers, ops  # noqa: E402


class TeacherTask(es.Task):
    """Digits, learned by a student from smoothed labels; its teacher, a moving average, is evaluated."""

    smoothing, decay, noise = 0.1, 0.98, 0.1

    def build_model(self):
        student = keras.Sequential(
            [keras.Input((784,)), layers.Dense(128, activation="relu"), layers.Dropout(0.2), layers.Dense(10)]
        )
        self.teacher = keras.models.clone_model(student)
        self.teacher.set_weights(student.get_weights())
        self.seed = keras.random.SeedGenerator(1)
        return student

    def build_inputs(self, params, input_context=None):
        images, labels = load_mnist("train" if params.is_training else "test")
        return images.reshape(-1, 784) / np.float32(255), labels.astype("int32")

    def build_losses(self, labels, model_outputs, aux_losses=None):
        targets = ops.one_hot(labels, 10) * (1 - self.smoothing) + self.smoothing / 10
        loss = ops.mean(keras.losses.categorical_crossentropy(targets, model_outputs, from_logits=True))
        return loss + sum(aux_losses or [])

    def build_metrics(self, training=True):
        return [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]

    def train_step(self, inputs, model, optimizer, metrics):
        x, y = inputs
        x = x + keras.random.normal(ops.shape(x), stddev=self.noise, seed=self.seed)

        def loss_fn():
            y_pred = model(x, training=True)
            return self.build_losses(y, y_pred, aux_losses=model.losses), y_pred

        (loss, y_pred), grads = es.value_and_grad(loss_fn, model.trainable_variables, optimizer=optimizer)
        optimizer.apply(grads, model.trainable_variables)
        for slow, fast in zip(self.teacher.trainable_variables, model.trainable_variables, strict=True):
            slow.assign(self.decay * slow + (1 - self.decay) * fast)
        self.process_metrics(metrics, y, y_pred)
        norm = ops.sqrt(sum(ops.sum(ops.square(grad)) for grad in grads))
        return {self.loss: loss, "gradient_norm": norm}  # whatever is returned is logged, averaged per window

    def inference_step(self, inputs, model):
        return self.teacher(inputs, training=False)


params = es.ExperimentConfig(
    task=es.TaskConfig(
        train_data=es.DataConfig(global_batch_size=128, is_training=True),
        validation_data=es.DataConfig(global_batch_size=1000, is_training=False),
    ),
    trainer=es.TrainerConfig(
        train_steps=300,
        steps_per_loop=50,
        validation_interval=150,
        checkpoint_interval=150,
        optimizer_config=es.OptimizationConfig(
            {
                "optimizer": {"type": "adam"},
                "learning_rate": {"type": "constant", "constant": {"learning_rate": 2e-3}},
            }
        ),
    ),
)


def report(logs):
    print(f"loss {logs['training_loss']:.4f}  gradient norm {logs['gradient_norm']:.4f}")


task = TeacherTask(params.task)
_, logs = es.run_experiment(task, params, model_dir, train_actions=[report], export=False, verbose=False)
print(f"accuracy of the teacher: {logs['accuracy']:.4f}")
