"""`everstep bct`."""

from typing import Annotated, Any

import typer

from everstep.cli import aligned, choose_backend, load_backend, new_app, number, options, print_json, quiet
from everstep.recipes.bct import read_samples

app = new_app(
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Example: everstep bct evaluate runs/old runs/new --data test.npz",
)

Old = Annotated[str, typer.Argument(metavar="OLD", help="The old model: a .keras file, or a finished run.")]
New = Annotated[str, typer.Argument(metavar="NEW", help="The new model.")]
Data = Annotated[str, typer.Option(metavar="FILE", help="Queries: an .npz file with x and y.")]
Gallery = Annotated[str | None, typer.Option(metavar="FILE", help="What to look them up in; --data by default.")]
Paragon = Annotated[
    str | None, typer.Option(metavar="MODEL", help="The new model trained without the old one, for the gain.")
]
Metric = Annotated[str, typer.Option(metavar="NAME", help="The figure that gain and criterion are about.")]
Far = Annotated[float, typer.Option(metavar="RATE", help="The false accept rate of TAR@FAR.")]
Fpir = Annotated[float, typer.Option(metavar="RATE", help="The false alarm rate of TPIR@FPIR.")]
BatchSize = Annotated[int, typer.Option(metavar="N", min=1, help="Samples embedded at once.")]
Backend = Annotated[str | None, typer.Option(metavar="NAME", help="The Keras backend.")]


@app.callback()
def bct() -> None:
    """Backward-compatible training: compare embedding models.

    A new version of a model is compatible if its embeddings can be searched in the gallery of the old one.
    """


@app.command(epilog="Example: everstep bct evaluate runs/old runs/new --data test.npz --paragon runs/alone --json")
def evaluate(
    old: Old,
    new: New,
    data: Data,
    gallery: Gallery = None,
    paragon: Paragon = None,
    metric: Metric = "mAP",
    far: Far = 1e-3,
    fpir: Fpir = 1e-2,
    batch_size: BatchSize = 256,
    backend: Backend = None,
    json: options.Json = False,
) -> None:
    """Check whether a new model can be used with the gallery of an old one.

    A row names query and gallery: new/old are embeddings of NEW looked up among those of OLD. Without --gallery, images
    are looked up among each other, and no image in itself.
    """
    queries = read_samples(data, "--data")
    items = None if gallery is None else read_samples(gallery, "--gallery")
    choose_backend(backend)
    with quiet():
        from everstep.recipes.bct import evaluation

        load_backend()
    settings: dict[str, Any] = {"metric": metric, "far": far, "fpir": fpir, "batch_size": batch_size}
    found = evaluation.evaluate(old, new, queries, gallery=items, paragon=paragon, **settings)
    if not json:
        print(_table(found))
        return
    figures = {"rows": found.rows, "metric": found.metric, "update_gain": found.gain}
    print_json({**figures, "paragon": found.paragon, "compatible": found.compatible})


def _table(found: Any) -> str:
    names = list(found.rows["old/old"])
    rows = [["query/gallery", *names]]
    rows += [[row, *(_figure(figures[name]) for name in names)] for row, figures in found.rows.items()]
    verdict = "yes" if found.compatible else "no"
    gain = number(round(found.gain, 4)) if found.gain == found.gain else f"none: {found.paragon} is not above old/old"
    lines = [
        ("compatible", f"{verdict}, by {found.metric}: new/old {'>' if found.compatible else '<='} old/old"),
        ("update gain", f"{gain} (against {found.paragon})"),
    ]
    return f"{aligned(rows)}\n\n{aligned(lines)}"


def _figure(value: float) -> str:
    return f"{value:.4f}" if value == value else "-"
