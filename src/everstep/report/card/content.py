"""What a card says, before it is HTML or Markdown. Every text in it is plain: nothing is markup."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep.config.files import load_file
from everstep.report.card.described import Entry, Section, sections
from everstep.report.card.loading import Loading, loading
from everstep.report.card.measured import Measured, measured
from everstep.report.card.trained import trained
from everstep.report.facts import Fact, read_notes

_LINKS = {
    "reports/report.html": "The report: curves, errors, the worst samples",
    "validation_report.csv": "Validation, sample by sample",
    "eval_report.csv": "Test, sample by sample",
    "eval_report_summary.csv": "Test, summarised",
    "exported/config.yaml": "The configuration that it was trained with",
}


@dataclasses.dataclass(frozen=True)
class Card:
    """A model card.

    Attributes:
      title: The model's name, or the run's.
      run: The run's name.
      project: The project's, "" where it has none.
      overview: What the model is, in paragraphs.
      details: What else people wrote about the model: one section, or none.
      sections: What they wrote about its parameters, and what is to be considered.
      measured: The numbers by set of data.
      notes: What of them is not as it was in training.
      training: How it was trained.
      loading: Where it is and how it is loaded; None where nothing is exported.
      links: Files in the run's folder, with what they are.
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
      config: The configuration, nested, without secrets; its descriptions may have been written after training.

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
        measured=measured(run_dir / "reports"),
        notes=read_notes(run_dir),
        training=trained(run_dir, used),
        loading=loading(run_dir, used),
        links={path: text for path, text in _LINKS.items() if (run_dir / path).is_file()},
    )


def _trained_with(run_dir: Path, config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the configuration that the export was trained with: the run's may say something else by now."""
    path = run_dir / "exported" / "config.yaml"
    return load_file(path) if path.is_file() else config


def _overview(known: list[Section]) -> list[str]:
    entry = _take(known, "overview")
    return [paragraph for text in (entry.texts if entry else []) for paragraph in text.split("\n\n")]


def _taken(known: list[Section], label: str) -> str:
    entry = _take(known, label)
    return " ".join(" ".join(entry.texts).split()) if entry else ""


def _take(known: list[Section], label: str) -> Entry | None:
    """Takes an entry out of the details, which are the first section."""
    found = next((entry for entry in known[0].entries if entry.label == label), None)
    if found is not None:
        known[0].entries.remove(found)
    return found
