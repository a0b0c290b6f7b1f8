"""What a flow runs with: the files of the config directory and the overrides, resolved for one task."""

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.config import dialect
from everstep.flow.params import Params
from everstep.optim.config import OptimizationConfig

DEFAULTS: Mapping[str, Any] = {
    "epoch": 1,
    "batch_size": 128,
    "seed": 42,
    "model_name": None,
    "loss": "sparse_categorical_crossentropy",
    "metrics": ["accuracy"],
    "shuffle": True,
    "validation_split": 0.0,
}
"""Parameters that the default `run` reads, with their values where no block sets them."""


@dataclasses.dataclass(frozen=True)
class FlowSettings:
    """The resolved configuration of one task.

    Attributes:
      task: The name of its class.
      chain: That name and those of the classes it inherits from, `FlowTask` last.
      params: Its parameters; locked, because they are recorded.
      catalog: What `catalog.yaml` says.
      optimizer: What `optimizer.yaml` says.
      has_optimizer_file: Whether anybody wrote about the optimizer.
      experiment: The name of the experiment on MLflow.
      catalog_files: The files of the catalog.
      catalog_edited: Whether overrides or interpolation have changed what those files say.
    """

    task: str
    chain: tuple[str, ...]
    params: Params
    catalog: Mapping[str, Any]
    optimizer: OptimizationConfig
    has_optimizer_file: bool
    experiment: str
    catalog_files: tuple[Path, ...] = ()
    catalog_edited: bool = False

    @property
    def shown_chain(self) -> str:
        """The chain as it is printed and logged: `Mnist_B <- Mnist_A <- FlowTask`."""
        return " <- ".join(self.chain)

    def as_dict(self) -> dict[str, Any]:
        """Returns all of it in plain values."""
        return {
            "task": self.task,
            "chain": list(self.chain),
            "experiment": self.experiment,
            "parameters": self.params.as_dict(),
            "catalog": dict(self.catalog),
            "optimizer": self.optimizer.as_dict(),
        }

    def as_yaml(self) -> str:
        """Returns all of it as YAML, without secrets."""
        return dialect.dump(redaction.tree(dialect.escaped(self.as_dict())))

    def digest(self, backend: str) -> str:
        """Returns ten characters that differ where the configuration or the backend does; secrets do not count."""
        text = f"{backend}\n{self.as_yaml()}"
        return hashlib.sha256(text.encode()).hexdigest()[:10]
