"""A GAN on points in the plane: two models, two optimizers, alternating updates, one source for every backend.

    python examples/gan.py --backend tensorflow

Even steps train the critic, odd ones the generator; `es.cond` chooses inside the compiled step. Everything the
task keeps in its attributes is part of the run's state.
"""

import argparse

import numpy as np

import everstep as es
from everstep.engine import backend

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", choices=backend.installed(), help="default: KERAS_BACKEND, else what is installed")
parser.add_argument("--model-dir", help="the run directory, by default runs/gan-BACKEND; a second run resumes there")
args = parser.parse_args()
name = backend.select(args.backend)  # before anything imports Keras
model_dir = args.model_dir or f"runs/gan-{name}"

import keras  # noqa: E402
from keras import layers, ops  # noqa: E402


def network(inputs, outputs):
    return keras.Sequential([keras.Input((inputs,)), layers.Dense(32, activation="relu"), layers.Dense(outputs)])


class GanTask(es.Task):
    """Learns to draw points like the ones it sees; the model is the generator."""

    latent = 4

    def build_model(self):
        self.critic = network(2, 1)
        self.critic_optimizer = keras.optimizers.Adam(2e-3, beta_1=0.5)
        self.critic_optimizer.build(self.critic.trainable_variables)
        self.noise = keras.random.SeedGenerator(1)
        self.step = keras.Variable(0, dtype="int32", trainable=False, name="step")
        return network(self.latent, 2)

    def build_inputs(self, params, input_context=None):
        points = np.random.default_rng(0).normal(loc=2.0, scale=0.5, size=(4096, 2))
        return points.astype("float32")

    def train_step(self, inputs, model, optimizer, metrics):
        noise = keras.random.normal((ops.shape(inputs)[0], self.latent), seed=self.noise)

        def critic_loss():
            real, fake = self.critic(inputs), self.critic(model(noise))
            return ops.mean(ops.softplus(-real)) + ops.mean(ops.softplus(fake))

        def generator_loss():
            return ops.mean(ops.softplus(-self.critic(model(noise))))

        def train_critic():
            variables = self.critic.trainable_variables
            (loss, other), grads = es.value_and_grad(lambda: (critic_loss(), generator_loss()), variables)
            self.critic_optimizer.apply(grads, variables)
            return loss, other

        def train_generator():
            variables = model.trainable_variables
            (loss, other), grads = es.value_and_grad(lambda: (generator_loss(), critic_loss()), variables)
            optimizer.apply(grads, variables)
            return other, loss

        critic, generator = es.cond(self.step % 2 == 0, train_critic, train_generator)
        self.step.assign_add(1)
        return {self.loss: generator, "critic_loss": critic, "generated_mean": ops.mean(model(noise))}


params = es.ExperimentConfig(
    task=es.TaskConfig(train_data=es.DataConfig(global_batch_size=256, is_training=True)),
    trainer=es.TrainerConfig(
        train_steps=3000,
        steps_per_loop=500,
        optimizer_config=es.OptimizationConfig(
            {
                "optimizer": {"type": "adam", "adam": {"beta_1": 0.5}},
                "learning_rate": {"type": "constant", "constant": {"learning_rate": 1e-3}},
            }
        ),
    ),
)


def report(logs):
    print(
        f"step {int(task.step):5d}  generator loss {logs['training_loss']:.4f}  "
        f"critic loss {logs['critic_loss']:.4f}  generated mean {logs['generated_mean']:.3f}"
    )


task = GanTask(params.task)
generator, _ = es.run_experiment(task, params, model_dir, "train", train_actions=[report], export=False, verbose=False)
points = generator(keras.random.normal((4096, GanTask.latent), seed=2))
print(f"final mean: {float(ops.mean(points)):.3f} (the data's is 2.0)")
