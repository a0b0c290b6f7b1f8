"""Each test starts with nothing learned."""

import pytest

from everstep.redaction import hiding
from everstep.redaction.memory import Memory


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    """What is known to be secret."""
    monkeypatch.setattr(hiding, "_memory", Memory())
    return hiding._memory
