"""The fixtures of the command line, in an empty directory."""

from tests.cli.conftest import everstep, shell  # noqa: F401
from tests.launch.conftest import here  # noqa: F401
