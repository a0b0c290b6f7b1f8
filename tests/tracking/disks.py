"""A full disk, simulated by a limit on the size of files, which needs no permissions."""

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
