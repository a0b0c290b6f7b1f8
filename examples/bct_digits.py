"""A new model that can be searched against the gallery of an old one, on handwritten digits.

    python examples/bct_digits.py --backend jax --seed 0

The old model knows the digits 0 to 5, from 280 images. The new one learns all ten from 1,200: once independently, once
under the old model's influence. Then 597 test images are compared with each other, queries of one model in the gallery
of another. A third version, with a wider embedding, learns under the second one's influence and never sees the first.

`--choose` shows how the settings were chosen: on 300 held-out training images, with other seeds.
"""

import argparse
import itertools

from everstep.engine import backend

VARIANTS = ("synthesise_all", "synthesise_new", "old_classes", "distill")

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", choices=backend.installed(), help="default: KERAS_BACKEND, else what is installed")
parser.add_argument("--model-dir", help="where the runs go, by default runs/bct-BACKEND-SEED; they resume there")
parser.add_argument("--seed", type=int, default=0, help="the seed of all random numbers")
parser.add_argument("--variant", choices=VARIANTS, default=VARIANTS[0], help="which samples the old model judges, how")
parser.add_argument("--choose", action="store_true", help="compare settings on held-out training images instead")
args = parser.parse_args()
name = backend.select(args.backend)  # before anything imports Keras
model_dir = args.model_dir or f"runs/bct-{name}-{'choose' if args.choose else args.seed}"

import everstep as es  # noqa: E402
import everstep.recipes.bct.digits  # noqa: E402  registers the experiments
from everstep import bct  # noqa: E402
from everstep.recipes.bct.digits_data import load_digits  # noqa: E402

DIGITS = [str(digit) for digit in range(10)]
HELD_OUT = 300


def train(experiment, run, seed, old_model="", trainer=None, **task):
    """Trains one model; returns it and its file."""
    params = es.get_exp_config(experiment)
    compatible = {"old_model": old_model, "variant": args.variant}
    params.override({"task": {**task, "bct": compatible}, "runtime": {"seed": seed}, "trainer": trainer or {}})
    model, _ = es.run_experiment(
        es.get_task(params.task), params, f"{model_dir}/{run}", "train", export=False, verbose=False
    )
    model.save(f"{model_dir}/{run}.keras")
    return model, f"{model_dir}/{run}.keras"


def figures(asking, held, images, labels):
    """Returns mAP and top-1 of one model's queries in another's gallery; no image is compared with itself."""
    vectors = bct.embed(asking, images), bct.embed(held, images)
    found = bct.rank(*vectors, labels, labels, same_images=True)
    return found.mean_average_precision(), found.top(1)


def show(rows):
    print(f"{'query/gallery':30}  {'mAP':>5}  {'top-1':>5}")
    for row, (precision, first) in rows.items():
        print(f"{row:30}  {precision:.3f}  {first:.3f}")


def measure(seed):
    """Prints the figures on the test images."""
    test = load_digits(training=False, classes=DIGITS)
    later = seed + 1000  # else old and new model would begin with the same weights
    old, old_file = train("bct/digits_old", "old", seed)
    alone, _ = train("bct/digits", "alone", later)
    new, new_file = train("bct/digits", "compatible", later, old_model=old_file)
    large = {"units": 512, "embedding_size": 48}
    third, _ = train("bct/digits", "third", seed + 2000, old_model=new_file, model=large)
    found = bct.evaluate(old, new, test, paragon=alone)
    crossed = {row: (values["mAP"], values["top-1"]) for row, values in found.rows.items()}

    print(f"backend: {name}, seed: {seed}, test images: {len(test[1])}")
    show(
        {
            "old/old": crossed["old/old"],
            "independent new/old": figures(alone, old, *test),
            "BCT new/old": crossed["new/old"],
            "BCT new/new": crossed["new/new"],
            "paragon (independent new/new)": crossed["paragon"],
        }
    )
    print(f"update gain: {found.gain:.3f}\ncompatible: {found.compatible}")
    versions = {"v1": old, "v2": new, "v3": third}
    pairs = ["v1/v1", "v2/v1", "v3/v1", "v2/v2", "v3/v2", "v3/v3"]
    print("three versions, each trained with the one before: v1 is old, v2 is BCT new")
    show({pair: figures(*(versions[one] for one in pair.split("/")), *test) for pair in pairs})


def choose(seeds=(10, 11, 12)):
    """Compares settings on held-out training images: of the old model alone, then of the new one with it."""
    held = load_digits(training=False, classes=DIGITS, held_out=HELD_OUT)

    def trained(experiment, run, seed, steps, rate, old_model=""):
        every = dict.fromkeys(("train_steps", "steps_per_loop", "validation_interval", "checkpoint_interval"), steps)
        rates = {"optimizer_config": {"learning_rate": {"constant": {"learning_rate": rate}}}}
        words = f"{run}-{seed}-{steps}-{rate}"
        return train(experiment, words, seed, old_model, {**every, **rates}, held_out=HELD_OUT)

    def mean(values):
        return sum(values) / len(values)

    print(f"backend: {name}, seeds: {seeds}, {HELD_OUT} of the training images held out, mean mAP")
    old, scores = {}, {}
    for steps, rate in itertools.product((100, 300), (1e-3, 3e-3)):
        old[steps, rate] = [trained("bct/digits_old", "old", seed, steps, rate) for seed in seeds]
        scores[steps, rate] = mean([figures(model, model, *held)[0] for model, _ in old[steps, rate]])
        print(f"old/old  steps {steps}  learning rate {rate}  {scores[steps, rate]:.4f}")
    best = max(scores, key=scores.get)
    for steps, rate in itertools.product((300, 600), (1e-3, 3e-3)):
        precisions = []
        for seed, (model, file) in zip(seeds, old[best], strict=True):
            new, _ = trained("bct/digits", "new", seed + 1000, steps, rate, file)
            precisions.append(figures(new, model, *held)[0])
        print(f"new/old  steps {steps}  learning rate {rate}  {mean(precisions):.4f}")


choose() if args.choose else measure(args.seed)
