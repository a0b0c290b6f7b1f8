"""Writes MNIST as image files with a labels file beside them, three folders in all.

    python generate_data.py datasets/mnist

Training images are the first of MNIST's training set; validation and test images follow each other in its test set.
"""

import argparse
import pathlib

import pandas as pd
from PIL import Image

from everstep.recipes.mnist_data import load_mnist


def write_images(images, labels_list, img_dir, suffix="jpg"):
    """Writes `image_0.jpg`, `image_1.jpg` … and, last, `labels.csv` with the columns `image name` and `label`."""
    img_dir.mkdir(parents=True, exist_ok=True)
    names = [f"image_{i}.{suffix}" for i in range(len(images))]
    for name, image in zip(names, images, strict=True):
        Image.fromarray(image).save(img_dir / name)
    pd.DataFrame({"image name": names, "label": labels_list}).to_csv(img_dir / "labels.csv")


def generate(data_dir, train=1000, validation=500, test=500, suffix="jpg"):
    """Writes the three splits; returns how many images each of them has."""
    ends = {"validation": (0, validation), "test": (validation, validation + test)}
    parts = [("train", load_mnist("train"), (0, train)), *((name, load_mnist("test"), ends[name]) for name in ends)]
    sizes = {}
    for name, (images, labels), (start, stop) in parts:
        if stop > len(images):
            raise SystemExit(f"{name}: MNIST has {len(images)} images there, but {stop} were requested")
        write_images(images[start:stop], labels[start:stop], pathlib.Path(data_dir) / name, suffix)
        sizes[name] = stop - start
    return sizes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_dir", type=pathlib.Path, help="the folder to write; outside of the project, or ignored")
    parser.add_argument("--train", type=int, default=1000, help="how many images to train with (1000)")
    parser.add_argument("--validation", type=int, default=500, help="how many to choose the best epoch by (500)")
    parser.add_argument("--test", type=int, default=500, help="how many to test with (500)")
    parser.add_argument("--format", choices=("jpg", "png"), default="jpg", help="jpg, or png, which loses nothing")
    args = parser.parse_args()
    sizes = generate(args.data_dir, args.train, args.validation, args.test, args.format)
    for name, size in sizes.items():
        print(f"{args.data_dir / name}: {size} images and labels.csv")


if __name__ == "__main__":
    main()
