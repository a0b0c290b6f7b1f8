"""A job as a process of its own, to be killed.

Run as a program, this file imports what a job needs, starts nothing, and forks for every line that it reads: most of a
short job's time goes into importing. What is forked runs and ends like any other process.
"""

import functools
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

STEPS, EPOCHS = 4, 6
LABELS = ["cat", "dog", "owl"]


def read_tfrecord(example, size, label_list):
    """As a component would write it."""
    import tensorflow as tf

    features = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.string)}
    parsed = tf.io.parse_single_example(example, features)
    image = tf.image.decode_image(parsed["image"], channels=3, expand_animations=False)
    image = tf.ensure_shape(tf.cast(image, tf.float32) / 255.0, (size, size, 3))
    return image, tf.cast(tf.where(tf.constant(label_list) == parsed["label"])[0], tf.float32)


def flipped(x, y):
    import tensorflow as tf

    return tf.image.flip_left_right(x), y


def arrays(count, seed=0):
    """Images whose class can be seen, and their labels."""
    import numpy as np

    random = np.random.default_rng(seed)
    labels = random.integers(0, 3, count)
    images = random.integers(0, 120, (count, 8, 8, 3)) + 60 * (np.arange(3) == labels[:, None])[:, None, None]
    return images.astype("uint8"), labels


def build_model(classes=3, rate=0.3):
    import keras

    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dropout(rate),
            keras.layers.Dense(classes, "softmax"),
        ]
    )


def data(folder, training):
    """Records where there are some, else arrays."""
    from everstep.training import get_labels, get_train_ds, get_valid_ds

    if not folder:
        x, y = arrays(4 * 32 if training else 20, seed=int(training))
        return x.astype("float32") / 255, y
    read = functools.partial(read_tfrecord, size=8, label_list=get_labels(folder)[1])
    if training:
        return get_train_ds(folder, read, 8, data_augmentation=flipped)
    return get_valid_ds(folder, read, 8)


def is_saved(job, step):
    """Tells whether a checkpoint is complete where the job lives."""
    if "://" not in job:
        return Path(job, "checkpoints", str(step)).exists()
    from everstep.checkpoint.remote.store import Store

    return f"checkpoints/{step}/manifest.json" in Store(job).listing()


def deadly(at, job):
    """A callback that ends its process at a point, such as `batch 3.1` or `begin 1`, by a signal."""
    import keras

    point, _, name = at.partition(" by ")

    class Deadly(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self._at, self.epoch = point, 0

        def look(self, reached):
            if reached != self._at:
                return
            os.kill(os.getpid(), getattr(signal, name or "SIGKILL"))

        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch
            self.await_saved(f"begin {epoch}" == self._at)
            self.look(f"begin {epoch}")

        def await_saved(self, needed):
            """Waits until the epoch before is saved: what is lost then, is lost by the job alone."""
            if needed and self.epoch:
                until(lambda: is_saved(job, self.epoch * STEPS), pause=0.3 if "://" in job else 0.01)

        def on_train_batch_end(self, batch, logs=None):
            self.await_saved(batch == 0)
            self.look(f"batch {self.epoch}.{batch}")

        def get_state(self):
            return {"epoch": self.epoch}

        def set_state(self, state):
            self.epoch = state["epoch"]

    return Deadly()


def until(true, seconds=120, pause=0.01):
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(pause)


def work(job, at="", folder="", epochs=EPOCHS, constant=False, url="", environment=None):
    """Runs a job to its end, or to the point where it dies; at a URL, if one is given."""
    import keras
    import numpy as np

    from everstep.training import Training

    os.environ.update(environment or {})
    place = url or job
    rate = 0.0 if constant else keras.optimizers.schedules.ExponentialDecay(0.02, 5, 0.9)
    optimizer = keras.optimizers.SGD(0.0) if constant else keras.optimizers.Adam(rate)
    t = Training(
        build_model_func=functools.partial(build_model, rate=0.0 if constant else 0.3),
        job_dir=place,
        artifacts_dir="" if constant else f"{place}-artifacts",
        optimizer=optimizer,
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
        verbose=False,
    )
    stop = keras.callbacks.EarlyStopping("val_loss", patience=2, min_delta=1e9 if constant else 0)
    t.add_callbacks([stop] if constant else [])
    t.add_callback(deadly(at, place))
    train, valid = data(folder, True), data(folder, False)
    train = train if folder else tuple(part[: STEPS * 32] for part in train)
    history = t.run_train(train, valid, epochs)
    weights = [hashlib.sha256(np.ascontiguousarray(w).tobytes()).hexdigest() for w in t.model.get_weights()]
    result = {"weights": weights, "history": history.history, "epochs": history.epoch}
    Path(f"{job}.json").write_text(json.dumps(result))


class Nursery:
    """Runs jobs in processes forked from one that has imported everything."""

    def __init__(self):
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, job, **order):
        """Runs a job; returns how it ended, negative after a signal, and its output."""
        output = Path(f"{job}.output")
        print(json.dumps({"job": str(job), "output": str(output), **order}), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline()), output.read_text()

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _serve():
    import keras.applications  # noqa: F401

    import everstep.training  # noqa: F401

    for line in sys.stdin:
        order = json.loads(line)
        output = order.pop("output")
        pid = os.fork()
        if not pid:
            _run_child(order, output)
        print(json.dumps(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), flush=True)
    os._exit(0)  # it has nothing to tidy up, and taking down what it has imported takes seconds


def _run_child(order, output):
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    code = 1
    try:
        work(**order)
        code = 0
    except SystemExit as left:
        code = left.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve()
