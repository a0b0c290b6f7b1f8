"""A disk that takes no more than it is told to: a limit on the size of files, which works without any rights."""

import contextlib
import resource


@contextlib.contextmanager
def files_of_at_most(size):
    """Within the block no file of this process grows beyond `size` bytes: a write is cut short, or refused."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
