"""Datasets that are read as a stream resume by their own state, and read one block again."""

import json

import numpy as np
import pytest

from everstep.data.labels import IGNORED
from everstep.data.text import ByteTokenizer, TextDataConfig, text_stream
from everstep.data.text import streaming as module
from everstep.data.text.stream import PACKED
from everstep.data.text.streaming import StreamedText
from everstep.errors import UsageError
from everstep.testing import streams

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

TEXTS = [f"{n}: " + "abcdefghijklmnopqrstuvwxyz"[: 1 + 7 * n % 23] for n in range(17)]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(module, "_LEAST_ROWS", 4)


def streamed_text(repeat=False, texts=TEXTS, length=32, **options):
    defaults = {"global_batch_size": 3, "is_training": True, "seed": 5, "drop_remainder": False}
    config = TextDataConfig(dataset="mine", streaming=True, repeat=repeat, **{**defaults, **options})
    config.validate()
    dataset = datasets.Dataset.from_dict({"text": texts}).to_iterable_dataset(num_shards=3)
    return StreamedText(dataset, config, ByteTokenizer(), length=length, inputs=PACKED)


KINDS = {
    "packed, shuffled": {"packing": True, "shuffle_buffer_size": 5},
    "in order": {"shuffle_buffer_size": 0},
    "split": {"packing": True, "long_texts": "split", "length": 7, "shuffle_buffer_size": 6},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_contract(check, kind):
    check(lambda repeat: streamed_text(repeat, **KINDS[kind]))


@pytest.mark.parametrize("kind", KINDS)
def test_every_token_once(kind):
    batches = list(streamed_text(**KINDS[kind]))
    assert sum(int((labels != IGNORED).sum()) for _, labels in batches) == sum(map(len, TEXTS))
    tokens = np.concatenate([inputs["token_ids"][inputs["segment_ids"] > 0] for inputs, _ in batches])
    assert np.array_equal(np.sort(tokens), np.sort(np.concatenate(ByteTokenizer().encode(TEXTS))))


def test_epochs_are_shuffled_differently():
    stream = streamed_text(True, shuffle_buffer_size=17, packing=False)
    orders = [[next(stream)[0]["token_ids"].tobytes() for _ in range(6)] for _ in range(2)]
    assert orders[0] != orders[1]


def test_the_log_says_that_a_stream_is_not_checked():
    assert "streamed" in streamed_text().why_not_exact


def test_a_folder_of_files(tmp_path):
    (tmp_path / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    config = TextDataConfig(
        dataset=str(tmp_path), streaming=True, tokenizer="bytes", is_training=False, global_batch_size=4
    )
    batches = list(text_stream(config, ByteTokenizer(), context=32))
    assert sum(int((labels != IGNORED).sum()) for _, labels in batches) == sum(map(len, TEXTS))


def test_bad_rows_are_named():
    with pytest.raises(UsageError) as caught:
        list(streamed_text(texts=["short"] * 6 + ["x" * 50], shuffle_buffer_size=0))
    assert (caught.value.key, caught.value.origin) == ("dataset", "mine, row 6")


def test_unknown_dataset_is_one_line(tmp_path):
    config = TextDataConfig(dataset=str(tmp_path / "none"), streaming=True, tokenizer="bytes", is_training=True)
    with pytest.raises(UsageError) as caught:
        text_stream(config, ByteTokenizer(), context=32)
    assert caught.value.key == "dataset"
    assert "\n" not in str(caught.value)
