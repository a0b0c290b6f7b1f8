"""The fixtures of the command line."""

from tests.cli.conftest import everstep, shell  # noqa: F401
