import sys
from pathlib import Path

import pytest

from everstep.checkpoint.remote.urls import checked, is_url, join, open_filesystem
from everstep.checkpoint.remote.working import working_copy
from everstep.errors import UsageError


def test_what_is_a_url():
    assert is_url("s3://bucket/run")
    assert is_url("memory://x")
    assert not any(map(is_url, ["runs/a", "/abs", "C:\\runs", "", None, Path("runs"), "a:b", "://x"]))


def test_a_url_is_taken_without_its_last_slash():
    assert checked("S3://bucket/a/b//") == "s3://bucket/a/b"
    assert join("s3://bucket/a/", "b", "", "c/") == "s3://bucket/a/b/c"


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("s4://bucket/x", "unknown kind of store 's4'"),
        ("s3://Bad_Bucket!/x", "'Bad_Bucket!' is not the name of a bucket"),
        ("gs:///x", "'' is not the name of a bucket"),
        ("s3://bucket/../x", "a part of it is empty, '.' or '..'"),
        ("s3://bucket/a//b", "a part of it is empty"),
        ("simplecache::s3://bucket/x", "chained URLs"),
        ("memory://", "names no place"),
    ],
)
def test_bad_urls_are_refused_in_one_line(url, reason):
    with pytest.raises(UsageError) as error:
        checked(url, "--model-dir")
    assert (error.value.key, error.value.received) == ("--model-dir", url)
    assert reason in error.value.reason
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("url", ["s3://AKIAX:hunter2@bucket/x", "gs://bucket/x?key=hunter2", "s3://hunter2@bucket/x"])
def test_credentials_are_refused_and_not_repeated(url):
    with pytest.raises(UsageError, match="come from the environment") as error:
        checked(url)
    assert "hunter2" not in str(error.value)


def test_a_url_in_a_path_is_noticed():
    with pytest.raises(UsageError, match="write 's3://bucket/run', as text"), working_copy(Path("s3://bucket/run")):
        pass


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match=r"s3:// needs the package 's3fs'.*everstep\[s3\]"):
        open_filesystem("s3://bucket/x")


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_times_that_are_none_are_refused(text, monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_UPLOAD_SECONDS", text)
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(UsageError, match="EVERSTEP_UPLOAD_SECONDS: received"), working_copy(f"file://{tmp_path}/run"):
        pass
