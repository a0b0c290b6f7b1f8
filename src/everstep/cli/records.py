"""`everstep records`."""

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import typer

from everstep.checkpoint.remote import is_url
from everstep.cli import options
from everstep.cli.commands import new_app
from everstep.cli.output import aligned, quiet
from everstep.data.formats import BadFile, NumpyFile
from everstep.data.tfrecord import Feature, Inspection, Written, differences, inspect, write_arrays, write_images
from everstep.errors import UsageError
from everstep.storage import json_text

app = new_app(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: everstep records inspect data/faces",
)

Folder = Annotated[str, typer.Argument(metavar="DIR", help="The dataset's folder.")]
Split = Annotated[str, typer.Option(metavar="NAME", help="train or valid.")]
Shards = Annotated[int, typer.Option(metavar="N", help="Number of files.")]
Shuffle = Annotated[bool, typer.Option("--shuffle/--no-shuffle", help="Whether to shuffle, or keep the order.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the order.")]
Arrays = Annotated[str | None, typer.Option(metavar="NPZ", help="Arrays with a sample per row, each a feature.")]
Images = Annotated[str | None, typer.Option(metavar="DIR", help="A folder of image files; needs --labels.")]
Labels = Annotated[str | None, typer.Option(metavar="CSV", help="A table with the columns file and label.")]
Paths = Annotated[list[str], typer.Argument(metavar="PATH...", help="Record files, folders of them, or URLs.")]
Examples = Annotated[int, typer.Option(metavar="N", help="How many of the first records to show.")]


@app.callback()
def records() -> None:
    """Write TFRecord files, or inspect them."""


@app.command(epilog="Example: everstep records write data/faces --images photos --labels photos.csv --shards 8")
def write(
    folder: Folder,
    arrays: Arrays = None,
    images: Images = None,
    labels: Labels = None,
    split: Split = "train",
    shards: Shards = 1,
    shuffle: Shuffle = True,
    seed: Seed = 0,
) -> None:
    """Write a dataset folder: <split>-00000-of-00008.tfrec …, and labels.txt.

    From --arrays: images (uint8, height, width, channels) become PNG, label becomes text. From --images and --labels:
    the files as they are; further columns become features, a column split chooses rows. Records are shuffled, always in
    the same way, and dealt to the files.
    """
    if (arrays is None) == (images is None) or (images is None) != (labels is None):
        raise UsageError(
            "one source is needed",
            key="--arrays",
            remedy="give --arrays FILE.npz, or --images DIR with --labels FILE.csv",
        )
    if is_url(folder):
        raise UsageError(
            "records are written to this machine", key="DIR", received=folder, remedy="name a folder, then copy it"
        )
    if arrays is not None:
        written = write_arrays(folder, split, _load(arrays), shards, shuffle=shuffle, seed=seed)
    else:
        written = write_images(folder, split, str(images), str(labels), shards, shuffle=shuffle, seed=seed)
    print(_summary(written))


@app.command("inspect", epilog="Example: everstep records inspect data/faces --examples 1 --json")
def inspect_files(paths: Paths, examples: Examples = 3, json: options.Json = False) -> None:
    """Show what is in record files: counts, features, the first records, damage.

    Every byte is read. Exit code 1: something is damaged; file and byte are shown.
    """
    with quiet(loads_keras=False):
        inspection = inspect(paths, examples)
    if json:
        print(json_text(_plain(inspection)))
    else:
        print("\n".join(_lines(inspection)))
    if inspection.damages:
        raise typer.Exit(1)


def _load(path: str) -> dict[str, np.ndarray]:
    try:
        with NumpyFile(path) as file:
            if not file.is_single:
                return {name: file.read(name) for name in file.names}
    except BadFile as error:
        raise UsageError(f"cannot be read as an .npz file: {error}", key="--arrays", received=path) from error
    raise UsageError("is a single array", key="--arrays", received=path, remedy="save it by its name with numpy.savez")


def _summary(written: Written) -> str:
    classes = f", {len(written.labels)} classes in labels.txt" if written.labels else ""
    return "\n".join([*written.files, f"{written.records} records in {len(written.files)} files{classes}"])


def _lines(inspection: Inspection) -> Iterator[str]:
    rows = [(file, f"{records} records", f"{size} bytes") for file, records, size in inspection.files]
    total = sum(records for _, records, _ in inspection.files)
    yield aligned(
        [*rows, (f"{len(rows)} files", f"{total} records", f"{sum(size for *_, size in inspection.files)} bytes")]
    )
    if inspection.features:
        yield f"\nfeatures, of {inspection.inspected} records"
        yield aligned(
            [(name, *_described(feature, inspection.inspected)) for name, feature in inspection.features.items()]
        )
    if differ := list(differences(inspection)):
        yield "\nnot the same in all records"
        yield from differ
    for number, example in enumerate(inspection.examples):
        yield f"\nrecord {number}"
        yield aligned(list(example.items()))
    if inspection.damages:
        yield "\ndamaged"
        yield from (str(damage) for damage in inspection.damages)


def _described(feature: Feature, looked: int) -> tuple[str, str, str]:
    count = f"{feature.least}" if feature.least == feature.most else f"{feature.least} to {feature.most}"
    images = f"{', '.join(sorted(feature.images))} images" if feature.images else ""
    missing = f"missing in {looked - feature.records}" if feature.records < looked else ""
    return " or ".join(feature.kinds), f"[{count}]", ", ".join(filter(None, [images, missing]))


def _plain(inspection: Inspection) -> dict[str, Any]:
    return {
        "files": [{"file": file, "records": records, "bytes": size} for file, records, size in inspection.files],
        "looked": inspection.inspected,
        "features": {
            name: {
                "type": feature.kind,
                "types": feature.kinds,
                "records": feature.records,
                "shape": [feature.least, feature.most],
                "images": sorted(feature.images),
            }
            for name, feature in inspection.features.items()
        },
        "differences": list(differences(inspection)),
        "examples": inspection.examples,
        "damages": [damage._asdict() for damage in inspection.damages],
    }
