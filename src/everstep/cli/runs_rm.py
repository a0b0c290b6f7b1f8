"""`everstep runs rm`."""


def remove() -> None:
    """Remove runs."""
