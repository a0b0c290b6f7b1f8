"""The content of a model card, before it becomes HTML or Markdown: all texts are plain, without markup.

Descriptions come from the config file, numbers from `reports/`, the rest from the files of training and export.
"""

import dataclasses
import hashlib
import json
import textwrap
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.config import load_file
from everstep.report.numbers import finite
from everstep.report.run_data import (
    Fact,
    chosen_by,
    code_name,
    fact,
    read_export,
    read_notes,
    read_object,
    short,
)
from everstep.report.split_data import read_pages
from everstep.run import export_config, export_record, layouts, record, results_file

_MOST_CLASSES = 20
_TITLES = {"model_details": "Details", "model_parameters": "Model", "considerations": "Considerations"}


@dataclasses.dataclass(frozen=True)
class CardEntry:
    """One key of a description.

    Attributes:
      label: The key in words: `use cases`.
      texts: Its texts; paragraphs are separated by an empty line, and each is one line.
      listed: Whether the texts are items of a list.
    """

    label: str
    texts: list[str]
    listed: bool


@dataclasses.dataclass(frozen=True)
class Section:
    """A part of the card.

    Attributes:
      title: The heading.
      entries: The entries below it.
    """

    title: str
    entries: list[CardEntry]


def sections(config: Mapping[str, Any]) -> list[Section]:
    """Returns details, parameters and considerations; a missing section has no entries."""
    return [Section(title, list(_entries(config.get(key), ""))) for key, title in _TITLES.items()]


def _entries(value: Any, label: str) -> Iterator[CardEntry]:
    if isinstance(value, Mapping):
        for key, inside in value.items():
            yield from _entries(inside, f"{label} {_words(key)}".strip())
    elif texts := _texts(value):
        yield CardEntry(label.removesuffix(" name"), texts, isinstance(value, list | tuple))


def _texts(value: Any) -> list[str]:
    """Returns a value as texts; empty ones are left out."""
    items = value if isinstance(value, list | tuple) else [value]
    return [text for item in items if (text := _text(item))]


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, Mapping):
        texts = {_words(key): text for key, inside in value.items() if (text := _text(inside))}
        if list(texts) == ["description"]:  # the same as an item without a key
            return texts["description"]
        return "; ".join(f"{key}: {text}" for key, text in texts.items())
    if isinstance(value, list | tuple):
        return ", ".join(filter(None, map(_text, value)))
    return "\n\n".join(filter(None, map(_line, plain(str(value)).split("\n\n"))))


def plain(text: str) -> str:
    """Returns a text without control characters, with uniform line ends."""
    lines = "\n".join(line.strip() for line in text.splitlines())
    return "".join(letter for letter in lines if letter.isspace() or unicodedata.category(letter) not in ("Cc", "Cs"))


def _line(paragraph: str) -> str:
    return " ".join(paragraph.split())


def _words(key: Any) -> str:
    return _line(plain(str(key)).replace("_", " "))


SPLITS = ("validation", "test")


@dataclasses.dataclass(frozen=True)
class CardMetric:
    """One metric over the samples of one split.

    Attributes:
      name: The metric's name.
      description: One sentence, or "".
      better: "higher", "lower", or None if it is unknown.
      mean: The mean; None if no sample has a value.
      count: The number of samples that have a value.
      edges: The edges of the histogram's bins.
      counts: The number of samples in each bin.
    """

    name: str
    description: str
    better: str | None
    mean: float | None
    count: int
    edges: list[float]
    counts: list[int]


@dataclasses.dataclass(frozen=True)
class Measured:
    """The metrics on one split.

    Attributes:
      split: The name of the split.
      rows: The number of samples; None if they were not evaluated one by one.
      metrics: The metrics of the evaluator's functions.
      overall: The values of the model's own metrics, by name.
    """

    split: str
    rows: int | None
    metrics: list[CardMetric]
    overall: dict[str, float | None]


def measured(run_dir: Path) -> list[Measured]:
    """Returns the metrics in the files of a run's evaluation.

    Raises:
      UsageError: A file is damaged.
    """
    path = results_file(run_dir)
    means = {} if path is None else read_object(path)
    pages = {split: read_object(run_dir / "reports" / f"{split}.json") for split in SPLITS}
    found = [_of(split, pages[split], means.get(split, {})) for split in SPLITS]
    return [one for one in found if one.metrics or one.overall]


def _of(split: str, page: Mapping[str, Any], means: Mapping[str, Any]) -> Measured:
    overall = page.get("overall") or means.get("model.evaluate", {})
    return Measured(
        split=split,
        rows=page.get("rows"),
        metrics=[_metric(metric) for metric in page.get("metrics", ())],
        overall={str(name): finite(value) for name, value in overall.items()},
    )


def _metric(metric: Mapping[str, Any]) -> CardMetric:
    same = ("name", "description", "better", "mean", "count")
    return CardMetric(**{name: metric[name] for name in same}, **metric["histogram"])


@dataclasses.dataclass(frozen=True)
class Loading:
    """How to load and call a model.

    Attributes:
      path: The model's path, relative to the project's folder.
      code: Python code that loads and calls it.
      note: What its inputs must be.
    """

    path: str
    code: str
    note: str


def loading(run_dir: Path, config: Mapping[str, Any]) -> Loading | None:
    """Returns how to load the exported model; None if there is none.

    Args:
      run_dir: The run's folder, in the project's `runs/`.
      config: The configuration that the model was trained with.
    """
    file = export_record(run_dir)
    if file is None:
        return None
    known = storage.read_json(file)
    former = next(
        Path(model).name for layout in layouts() for model in layout.models
    )  # not recorded by earlier versions
    name = known.get("estimator") or known.get("model", former)
    path = f"{run_dir.parent.name}/{run_dir.name}/{file.parent.name}/{name}"
    maker = config.get("preprocessor_class")
    made = f"as {maker} makes it from the data" if maker else "as in training"
    return Loading(
        path, _code(path, known), f"x is a batch of inputs, {made}; the exported model does no preprocessing."
    )


def _code(path: str, known: Mapping[str, Any]) -> str:
    quoted = json.dumps(path, ensure_ascii=False)
    if path.endswith(".skops"):
        lines = f"""
            import skops.io

            model = skops.io.load({quoted})
            y_pred = model.predict(x)
        """
    elif "estimator" in known:
        lines = f"""
            import joblib  # it runs whatever the file says: load only what you trust

            model = joblib.load({quoted})
            y_pred = model.predict(x)
        """
    elif path.endswith(".pt2"):
        lines = f"""
            import torch  # it runs what a file says: load only what you trust

            model = torch.export.load({quoted}).module()
            y_pred = model({_tensor(known.get("inputs") or [])})
        """
    else:
        lines = f"""
            import tensorflow as tf

            model = tf.saved_model.load({quoted})
            y_pred = model.serve({_argument(known.get("inputs") or [])})
        """
    return textwrap.dedent(lines).strip() + "\n"


def _argument(dtypes: list[str]) -> str:
    return f'tf.cast(x, "{dtypes[0]}")' if len(dtypes) == 1 else "x"


def _tensor(dtypes: list[str]) -> str:
    return f"torch.as_tensor(x, dtype=torch.{dtypes[0]})" if len(dtypes) == 1 else "x"


def trained(run_dir: Path, config: Mapping[str, Any]) -> list[Fact]:
    """Returns the facts about training in the order of display.

    Attempts and time are left out, so that a run that was killed and resumed has the same card.

    Args:
      run_dir: The run's folder.
      config: The configuration that the model was trained with.

    Raises:
      UsageError: `run.json` or `export.json` is damaged.
    """
    run = record.read(run_dir) if (run_dir / "run.json").is_file() else {}
    export = read_export(run_dir)
    classes = fact("classes", _listed_classes(_classes(run, run_dir)))
    found = [*_course(export, config), *_settings(run, export, config), classes, *_origin(run, export)]
    return [each for each in found if each["value"]]


def _course(export: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Fact]:
    epochs, best = config.get("epochs"), export.get("epoch")
    if "estimator" in export:
        yield fact("exported", "the fitted estimator")
        return
    yield fact("epochs", epochs)
    if best is not None:
        yield fact("best epoch", f"{int(best) + 1} of {epochs}" if epochs else int(best) + 1)
    yield fact("chosen by", chosen_by(export))


def _settings(run: Mapping[str, Any], export: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Fact]:
    yield fact("batch size", config.get("batch_size"))
    seed = config.get("seed")
    yield fact("seed", "" if seed is None else str(seed))
    yield fact("parameters", short(run.get("cost", {}).get("parameters")))
    yield fact("model", config.get("model_builder_class"))
    yield fact("backend", run.get("backend"))
    packages = run.get("environment", {}).get("packages", {})
    yield fact("versions", ", ".join(f"{name} {version}" for name, version in packages.items()))


def _classes(run: Mapping[str, Any], run_dir: Path) -> Sequence[str]:
    """Returns the names of the classes, as the run has recorded them, else as its evaluations name them."""
    pages = [page for _, page in read_pages(run_dir / "reports")]
    return next((names for names in (run.get("classes"), *(page["classes"] for page in pages)) if names), [])


def _listed_classes(names: Sequence[str]) -> str:
    """Returns the names of the classes, in the order of their numbers; the first ones of many."""
    more = len(names) - _MOST_CLASSES
    return ", ".join(map(str, names[:_MOST_CLASSES])) + (f" and {more} more" if more > 0 else "")


def _origin(run: Mapping[str, Any], export: Mapping[str, Any]) -> Iterator[Fact]:
    yield fact("code", code_name(export.get("code") or run.get("code") or {}))
    yield fact("data", _data_digest(run.get("data", {})))
    attempts = run.get("attempts") or [{}]
    yield fact("date", str(attempts[0].get("started") or "")[:10])


def _data_digest(data: Mapping[str, Any]) -> str:
    """Returns a digest of the data's digests; empty if the data itself has none."""
    text = json.dumps(data, sort_keys=True)
    return f"sha256 {hashlib.sha256(text.encode('utf-8')).hexdigest()[:16]}" if '"sha256"' in text else ""


@dataclasses.dataclass(frozen=True)
class Card:
    """A model card.

    Attributes:
      title: The model's name, or the run's.
      run: The run's name.
      project: The project's name, "" if it has none.
      overview: A description of the model, in paragraphs.
      details: The section with further details of the model, if there is one.
      sections: The sections on its parameters and considerations.
      measured: The metrics of each split.
      notes: Differences between evaluation and training.
      training: Facts about training.
      loading: How to load the model; None if nothing is exported.
      links: Files in the run's folder, each with a description.
    """

    title: str
    run: str
    project: str
    overview: list[str]
    details: list[Section]
    sections: list[Section]
    measured: list[Measured]
    notes: list[str]
    training: list[Fact]
    loading: Loading | None
    links: dict[str, str]


def read_card(run_dir: Path, config: Mapping[str, Any]) -> Card:
    """Returns the card of a run from its files.

    Args:
      run_dir: The run's folder.
      config: The nested configuration without secrets; its descriptions may be newer than the training.

    Raises:
      UsageError: A file of the run cannot be read.
    """
    known = sections(config)
    used = _trained_with(run_dir, config)
    return Card(
        title=_taken(known, "name") or run_dir.name,
        run=run_dir.name,
        project=str(config.get("project_name") or ""),
        overview=_overview(known),
        details=[section for section in known[:1] if section.entries],
        sections=[section for section in known[1:] if section.entries],
        measured=measured(run_dir),
        notes=read_notes(run_dir),
        training=trained(run_dir, used),
        loading=loading(run_dir, used),
        links={
            path: text for layout in layouts() for path, text in layout.described.items() if (run_dir / path).is_file()
        },
    )


def _trained_with(run_dir: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration that the export was trained with: the run's may have been edited since."""
    path = export_config(run_dir)
    return config if path is None else load_file(path)


def _overview(known: list[Section]) -> list[str]:
    entry = _take(known, "overview")
    return [paragraph for text in (entry.texts if entry else []) for paragraph in text.split("\n\n")]


def _taken(known: list[Section], label: str) -> str:
    entry = _take(known, label)
    return " ".join(" ".join(entry.texts).split()) if entry else ""


def _take(known: list[Section], label: str) -> CardEntry | None:
    """Removes an entry from the details, the first section, and returns it."""
    found = next((entry for entry in known[0].entries if entry.label == label), None)
    if found is not None:
        known[0].entries.remove(found)
    return found
