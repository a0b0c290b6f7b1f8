"""A training component: a classifier on TFRecords, trained as a job that may be preempted at any moment.

    python generate_data.py data/shapes
    everstep launch --max-restarts 5 -- python component.py --dataset data/shapes \
        --job_dir jobs/tmp/shapes/17 --artifacts_dir jobs/artifacts/shapes/17 --model small --epochs 3

Exit codes: 0 done, 1 failed, 2 bad input (trying again would not help), 143 stop requested, state saved (try again).
"""

import functools
import sys

import keras
import tensorflow as tf
from absl import flags

from everstep import Training, get_labels, get_train_ds, get_valid_ds
from everstep.training import run_component

flags.DEFINE_string("dataset", None, "The dataset's folder: train-*.tfrec, valid-*.tfrec, labels.txt.", required=True)
flags.DEFINE_string("job_dir", None, "The job's directory: the same in every attempt.", required=True)
flags.DEFINE_string("artifacts_dir", "", "Where saved_model/ and history.csv go.")
flags.DEFINE_enum("model", "resnet50", ["resnet50", "small"], "What to train.")
flags.DEFINE_integer("size", 112, "Height and width of the images.")
flags.DEFINE_integer("global_batch_size", 32, "Samples per step.")
flags.DEFINE_float("percentage", 100, "How much of the dataset to use.")
flags.DEFINE_float("learning_rate", 0.001, "Of Adam.")
flags.DEFINE_integer("epochs", 10, "How many in all.")
flags.DEFINE_bool("use_tpu", False, "Whether to train on a TPU.")
flags.DEFINE_string("pipeline_files", "", "A folder for mlpipeline-ui-metadata.json and mlpipeline-metrics.json.")
FLAGS = flags.FLAGS

TFRECORD_FEATURES = {"image": tf.io.FixedLenFeature([], tf.string), "label": tf.io.FixedLenFeature([], tf.string)}


def build_model(name, num_classes, size):
    if name == "resnet50":
        return keras.applications.ResNet50(classes=num_classes, weights=None, input_shape=(size, size, 3))
    return keras.Sequential(
        [
            keras.Input((size, size, 3)),
            keras.layers.Conv2D(8, 3, strides=2, activation="relu"),
            keras.layers.Conv2D(16, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(num_classes, activation="softmax"),
        ]
    )


def preprocess_image(image, size):
    image = tf.image.resize(image, (size, size))
    return tf.ensure_shape(image / 255.0, (size, size, 3))


def read_tfrecord(example, size, label_list):
    example = tf.io.parse_single_example(example, TFRECORD_FEATURES)
    image = tf.image.decode_image(example["image"], channels=3, expand_animations=False)
    image = preprocess_image(image, size)
    label_num = tf.cast(tf.where(tf.constant(label_list) == example["label"])[0], tf.float32)
    return image, label_num


def main():
    num_classes, label_list = get_labels(FLAGS.dataset, FLAGS.percentage)

    build_model_func = functools.partial(build_model, FLAGS.model, num_classes=num_classes, size=FLAGS.size)
    t = Training(
        build_model_func=build_model_func,
        job_dir=FLAGS.job_dir,
        artifacts_dir=FLAGS.artifacts_dir,
        use_tpu=FLAGS.use_tpu,
        custom_model_class=None,
        optimizer=keras.optimizers.Adam(FLAGS.learning_rate),
        loss="sparse_categorical_crossentropy",
        metrics=["accuracy"],
    )
    t.model_summary()

    read_tfrecord_func = functools.partial(read_tfrecord, size=t.get_model_input_size(), label_list=label_list)

    train_ds = get_train_ds(FLAGS.dataset, read_tfrecord_func, FLAGS.global_batch_size, FLAGS.percentage)
    valid_ds = get_valid_ds(FLAGS.dataset, read_tfrecord_func, FLAGS.global_batch_size, FLAGS.percentage)

    history = t.run_train(train_ds, valid_ds, FLAGS.epochs)
    if FLAGS.pipeline_files:
        t.save_pipeline_metadata(
            f"{FLAGS.pipeline_files}/mlpipeline-ui-metadata.json", f"{FLAGS.pipeline_files}/mlpipeline-metrics.json"
        )
    for epoch, accuracy in zip(history.epoch, history.history["val_accuracy"], strict=True):
        print(f"epoch {epoch}: val_accuracy {accuracy:.3f}")


if __name__ == "__main__":
    try:
        FLAGS(sys.argv)
    except flags.Error as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    raise SystemExit(run_component(main))
