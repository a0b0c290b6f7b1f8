"""A new model that can be searched against the gallery of an old one, on handwritten digits.

    python examples/bct_digits.py --backend jax --seed 0

The old model knows the digits 0 to 5, from 280 images. The new one learns all ten from 1,200: once by itself, once
with the old model's say. Then 597 test images are looked up among each other: who asks, and in whose gallery?
"""

import argparse

from everstep.engine import backend

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--backend", choices=backend.installed(), help="default: KERAS_BACKEND, else what is installed")
parser.add_argument("--model-dir", help="where the three runs go, by default runs/bct-BACKEND-SEED; they resume there")
parser.add_argument("--seed", type=int, default=0, help="of everything that is drawn")
args = parser.parse_args()
name = backend.select(args.backend)  # before anything imports Keras
model_dir = args.model_dir or f"runs/bct-{name}-{args.seed}"

import everstep as es  # noqa: E402
import everstep.bct.digits  # noqa: E402  registers the experiments
from everstep import bct  # noqa: E402
from everstep.bct.digits_task import load_digits  # noqa: E402


def train(experiment, run, old_model="", seed=args.seed):
    params = es.get_exp_config(experiment)
    params.override({"task": {"bct": {"old_model": old_model}}, "runtime": {"seed": seed}})
    task = es.get_task(params.task)
    model, _ = es.run_experiment(None, task, "train", params, f"{model_dir}/{run}", export=False, verbose=False)
    return model


old = train("bct/digits_old", "old")
old.save(f"{model_dir}/old.keras")
other = args.seed + 1000  # else old and new model would begin with the same weights
alone = train("bct/digits", "alone", seed=other)
new = train("bct/digits", "compatible", old_model=f"{model_dir}/old.keras", seed=other)

images, labels = load_digits(training=False, classes=[str(digit) for digit in range(10)])
found = bct.evaluate(old, new, (images, labels), paragon=alone)
crossed = bct.rank(bct.embed(alone, images), bct.embed(old, images), labels, labels, same_images=True)
independent = {"mAP": crossed.mean_average_precision(), "top-1": crossed.top(1)}

print(f"backend: {name}, seed: {args.seed}, test images: {len(labels)}")
rows = {
    "old/old": found.rows["old/old"],
    "independent new/old": independent,
    "BCT new/old": found.rows["new/old"],
    "BCT new/new": found.rows["new/new"],
    "paragon (independent new/new)": found.rows["paragon"],
}
print(f"{'query/gallery':30}  {'mAP':>5}  {'top-1':>5}")
for row, figures in rows.items():
    print(f"{row:30}  {figures['mAP']:.3f}  {figures['top-1']:.3f}")
print(f"update gain: {found.gain:.3f}")
print(f"compatible: {found.compatible}")
