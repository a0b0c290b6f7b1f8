"""The fixtures of the command line, and of configurations."""

from tests.cli.conftest import everstep, shell  # noqa: F401
from tests.config.conftest import project  # noqa: F401
