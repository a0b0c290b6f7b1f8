"""Where the exported model is, and the lines that load it."""

import dataclasses
import json
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import storage


@dataclasses.dataclass(frozen=True)
class Loading:
    """How a model is used.

    Attributes:
      path: Where it is, from the project's folder.
      code: Python that loads it and asks it.
      note: What an input has to be.
    """

    path: str
    code: str
    note: str


def loading(run_dir: Path, config: Mapping[str, Any]) -> Loading | None:
    """Returns how what is exported is loaded; None where nothing is.

    Args:
      run_dir: The run's folder, in the project's `runs/`.
      config: The configuration that it was trained with.
    """
    export = run_dir / "exported"
    if not (export / "export.json").is_file():
        return None
    known = storage.read_json(export / "export.json")
    name = known.get("estimator") or known.get("model", "savedmodel")
    path = f"{run_dir.parent.name}/{run_dir.name}/exported/{name}"
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
