"""The error of every reader in this folder."""


class BadFile(ValueError):
    """A file, or the bytes of one, cannot be used; the text says why, in one line.

    A reader does not know which setting named the file. Its caller does, and turns this into a `UsageError`.
    """


def in_one_line(error: BaseException) -> str:
    """Returns the first line of what a library says about a file, without the number of an OSError."""
    text = getattr(error, "strerror", None) or str(error)
    return (text.splitlines() or [type(error).__name__])[0]
