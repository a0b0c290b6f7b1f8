"""Each test starts with nothing learned."""

import pytest

from everstep import redaction
from everstep.redaction import Memory


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """What is known to be secret."""
    monkeypatch.setattr(redaction, "_memory", Memory())
    return redaction._memory
