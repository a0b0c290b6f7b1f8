"""The model card: a model's purpose, users, metrics, training, and how to load it.

    write_card("runs/baseline", config)

README.md                         for readers of the run's folder, with the histograms below
model-card/histograms/*.svg       the distributions of the metrics
model-card/model_card.html        the same as one self-contained file

The same run gives the same bytes.
"""

from everstep.evaluation.report.card.files import write_card

__all__ = ["write_card"]
