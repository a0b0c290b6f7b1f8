"""Writes a dataset of coloured shapes: `python generate_data.py data/shapes --train 600 --valid 120`."""

import argparse

import numpy as np

from everstep.data import write_arrays

LABELS = ("disc", "frame", "stripes")


def draw(label, size, random):
    rows, columns = np.mgrid[:size, :size]
    middle, radius = random.uniform(0.35, 0.65, 2) * size, random.uniform(0.2, 0.35) * size
    if label == "disc":
        shape = (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 < radius**2
    elif label == "frame":
        far = np.maximum(abs(rows - middle[0]), abs(columns - middle[1]))
        shape = (far < radius) & (far > 0.7 * radius)
    else:
        shape = (rows + random.integers(8)) // max(2, size // 14) % 2 == 0
    colour, ground = random.integers(120, 256, 3), random.integers(0, 100, 3)
    image = np.where(shape[..., None], colour, ground) + random.integers(-10, 10, (size, size, 3))
    return image.clip(0, 255).astype(np.uint8)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--train", type=int, default=600)
    parser.add_argument("--valid", type=int, default=120)
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--shards", type=int, default=4)
    arguments = parser.parse_args()
    for split, count, shards in (("train", arguments.train, arguments.shards), ("valid", arguments.valid, 1)):
        random = np.random.default_rng(len(split) + count)
        labels = random.choice(LABELS, count)
        images = np.stack([draw(label, arguments.size, random) for label in labels])
        written = write_arrays(arguments.folder, split, {"image": images, "label": labels}, shards)
        print(f"{split}: {written.records} records in {len(written.files)} files")


if __name__ == "__main__":
    main()
