"""A slow store does not slow down training steps."""

import os
import time

import numpy as np
import pytest
from tests.checkpoint.remote.machines import remote_steps, save

from everstep.checkpoint.remote import working_copy

pytestmark = pytest.mark.slow

STEP_SECONDS, LIMIT_SECONDS = 0.005, 0.050


def steps(seconds, after=lambda count: None):
    """Runs short steps that sleep and compute; returns the seconds of each, without `after`."""
    taken, matrix, end = [], np.ones((64, 64)), time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.perf_counter()
        time.sleep(STEP_SECONDS)
        sum(float((matrix @ matrix).sum()) for _ in range(5))
        taken.append(time.perf_counter() - began)
        after(len(taken))
    return np.array(taken)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # aiohttp's of how gcsfs calls it
@pytest.mark.stores("s3", "gs")
@pytest.mark.parametrize("trouble", ["slow", "failing"])
def test_a_slow_store_does_not_slow_a_step(place, trouble, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("EVERSTEP_UPLOAD_SECONDS", "1")
    alone = steps(5)
    url = place.url()
    content = os.urandom(5_000_000)
    with working_copy(url) as directory:
        directory.mkdir()
        (directory / "run.json").write_text('{"id": "run-1"}')
        place.network.delay = 1.0 if trouble == "slow" else 0.0
        place.network.fault = "error" if trouble == "failing" else "none"
        among = steps(15, lambda count: count % 200 == 0 and save(directory, count, content))
        place.network.delay, place.network.fault = 0.0, "none"
    p99, before = np.percentile(among, 99), np.percentile(alone, 99)
    with capsys.disabled():
        print(
            f"\n{place.scheme} {trouble}: step p50 {np.median(among) * 1e3:.2f} ms, p99 {p99 * 1e3:.2f} ms; without a "
            f"store p50 {np.median(alone) * 1e3:.2f} ms, p99 {before * 1e3:.2f} ms; max {among.max() * 1e3:.0f} ms"
        )
    assert remote_steps(url)[-1] >= 200
    assert p99 - before <= LIMIT_SECONDS
