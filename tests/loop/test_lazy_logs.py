from everstep.loop.lazy_logs import LazyLogs


def test_fetched_once_and_only_when_read():
    calls = []

    def fetch():
        calls.append(1)
        return {"loss": 0.5, "accuracy": 1.0}

    logs = LazyLogs(fetch)
    assert not calls
    assert (logs["loss"], dict(logs), len(logs), list(logs)) == (
        0.5,
        {"loss": 0.5, "accuracy": 1.0},
        2,
        ["loss", "accuracy"],
    )
    assert repr(logs) == "{'loss': 0.5, 'accuracy': 1.0}"
    assert len(calls) == 1
