"""The History that `everstep.fit` and the other entry points return."""

import keras

from everstep.report import history_html


class History(keras.callbacks.History):
    """Keras's History; a notebook shows its curves, and where the run is.

    Args:
      directory: The run's directory; "" for a run that keeps nothing.
    """

    def __init__(self, directory: str = "") -> None:
        super().__init__()
        self._directory = directory

    def __repr__(self) -> str:
        curves = ", ".join(self.history)
        return f"<History of {len(self.epoch)} epochs{f': {curves}' if curves else ''}>"

    def _repr_html_(self) -> str:
        return history_html(self.epoch, self.history, self._directory)
