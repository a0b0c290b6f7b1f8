"""Which URLs are accepted, and what is wrong with the others."""

import sys
from pathlib import Path

import pytest

from everstep.checkpoint.remote.run_copies import working_copy
from everstep.checkpoint.remote.urls import checked, is_url, join, open_filesystem
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem


def test_urls_are_recognised():
    assert is_url("s3://bucket/run")
    assert is_url("memory://x")
    assert not any(map(is_url, ["runs/a", "/abs", "C:\\runs", "", None, Path("runs"), "a:b", "://x"]))


def test_slashes_at_the_end_are_removed():
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
        ("memory://", "has no path"),
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
    with raises_problem(key="model_dir", received=f"{url[:5]}…", reason="must not contain credentials") as error:
        checked(url)
    assert "come from the environment" in error.value.remedy
    assert "hunter2" not in f"{error.value} {error.value.problems}"


def test_a_path_that_was_a_url_is_refused():
    with (
        raises_problem(key="model_dir", received="s3:/bucket/run", reason="lacks a slash") as error,
        working_copy(Path("s3://bucket/run")),
    ):
        pass
    assert error.value.remedy.startswith("pass 's3://bucket/run' as a string")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with raises_problem(reason="s3:// needs the package 's3fs'", remedy=r"pip install .*\[s3\]'"):
        open_filesystem("s3://bucket/x")


@pytest.mark.parametrize("text", ["soon", "-1", "nan"])
def test_invalid_time_limits_are_refused(text, monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_UPLOAD_SECONDS", text)
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(UsageError) as error, working_copy(f"file://{tmp_path}/run"):
        pass
    assert (error.value.key, error.value.received) == ("EVERSTEP_UPLOAD_SECONDS", text)
