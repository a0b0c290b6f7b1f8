"""Shows samples and batches.

    python src/show.py datasets/mnist --flavour generators --save-to pictures

No screen is needed: pictures are printed as characters and saved in files. A notebook displays what `show` returns.
"""

import argparse
import pathlib

import numpy as np
from dataset import DataLoader, DataLoaderTF
from models import ModelBuilder
from PIL import Image
from preprocessing import Preprocessor, PreprocessorTF

FLAVOURS = {"tfdata": (DataLoaderTF, PreprocessorTF), "generators": (DataLoader, Preprocessor)}
SHADES = np.array(list(" .:-=+*#%@"))


def show(sample, save_as=None):
    """Prints and draws a sample, or a batch of samples.

    Args:
      sample: `(x, label, sample weight or data id)`, one or a batch of each.
      save_as: Where to save the picture, if anywhere.

    Returns:
      The picture, which a notebook displays. The images of a batch are side by side.
    """
    x, label, third = (np.asarray(part) for part in sample)
    is_batch = label.ndim > 0
    pictures = [_picture(image) for image in (x if is_batch else [x])]
    print(f"x: {x.shape} {x.dtype}, from {x.min():g} to {x.max():g}")
    print(f"label: {label}")
    print(f"{'data id' if third.dtype.kind in 'OSU' else 'sample weight'}: {third}")
    if not is_batch:
        print(_as_text(pictures[0]))
    drawn = Image.fromarray(np.concatenate(pictures, axis=1))
    if save_as is not None:
        pathlib.Path(save_as).parent.mkdir(parents=True, exist_ok=True)
        drawn.resize((4 * drawn.width, 4 * drawn.height), Image.Resampling.NEAREST).save(save_as)
        print(f"saved as {save_as}")
    return drawn


def _picture(x):
    """Returns a square image of bytes, whether it was preprocessed or not."""
    side = int(np.sqrt(x.size))
    image = np.reshape(x, (side, side))
    return image if image.dtype == np.uint8 else (255 * image).astype("uint8")


def _as_text(image):
    """Returns two rows of pixels as one line of characters, which are twice as high as wide."""
    rows = image.reshape(len(image) // 2, 2, -1).mean(axis=1)
    return "\n".join("".join(line).rstrip() for line in SHADES[(rows / 256 * len(SHADES)).astype(int)])


def first(samples):
    """Returns the first of a dataset's or a generator's samples."""
    return next(samples.as_numpy_iterator() if hasattr(samples, "as_numpy_iterator") else samples)


def explore(data_dir, flavour="tfdata", save_to=None):
    """Shows the output of each component with its defaults: no config file is needed."""
    loader_class, preprocessor_class = FLAVOURS[flavour]
    loader, preprocessor = loader_class(None, data_dir), preprocessor_class(None)
    path = pathlib.Path(save_to).joinpath if save_to else lambda name: None

    model = ModelBuilder(None).get_compiled_model()
    print(f"== the model: {model.inputs[0].shape} to {model.outputs[0].shape}")
    for split in ("training", "test"):
        samples, n = getattr(loader, f"create_{split}_generator")()
        print(f"== one of {n} {split} samples")
        show(first(samples), path(f"{split}.png"))
    batches, n_iter = preprocessor.add_preprocess(*loader.create_training_generator())
    print(f"== one of {n_iter} training batches")
    show(first(batches), path("batch.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data_dir", help="the folder that generate_data.py has written")
    parser.add_argument("--flavour", choices=sorted(FLAVOURS), default="tfdata", help="which components (tfdata)")
    parser.add_argument("--save-to", metavar="FOLDER", help="save the pictures there")
    args = parser.parse_args()
    explore(args.data_dir, args.flavour, args.save_to)
