"""Is the new model compatible with the old one, and how much of the possible gain does it bring?"""

import math


def is_compatible(cross: float, old: float) -> bool:
    """Tells whether new queries find more in the old gallery than old queries do: the empirical criterion.

    Args:
      cross: A retrieval figure of new queries in the old gallery.
      old: The same figure of old queries in it.
    """
    return cross > old


def update_gain(cross: float, old: float, paragon: float) -> float:
    """Returns the share of the possible gain that comes without computing the gallery anew.

    `(cross - old) / (paragon - old)`: 0 is no better than the old model, 1 as good as a gallery computed anew. NaN
    where the paragon is not better than the old model, so that there is nothing to gain.

    Args:
      cross: A retrieval figure of new queries in the old gallery.
      old: The same figure of old queries in it.
      paragon: The same figure of the best new model, trained without regard to the old one, in its own gallery.
    """
    return (cross - old) / (paragon - old) if paragon > old else math.nan
