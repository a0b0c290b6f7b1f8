"""Each test starts with nothing learned."""

import pytest

from everstep.redaction import hiding
from everstep.redaction.known_secrets import KnownSecrets


@pytest.fixture(autouse=True)
def memory(monkeypatch: pytest.MonkeyPatch) -> KnownSecrets:
    """What is known to be secret."""
    monkeypatch.setattr(hiding, "_known", KnownSecrets())
    return hiding._known
