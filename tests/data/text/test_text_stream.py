"""Texts in files become batches of tokens; every source resumes exactly; what is wrong names the file and the row."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from everstep.data.labels import IGNORED
from everstep.data.text import ByteTokenizer, TextDataConfig, text_stream
from everstep.data.text.stream import PACKED
from everstep.errors import UsageError
from everstep.testing import streams

TEXTS = [f"{n}: " + "abcdefghijklmnopqrstuvwxyz"[: 1 + 7 * n % 23] for n in range(14)]


@pytest.fixture(autouse=True)
def token_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def write(tmp_path):
    def write(rows, name="a.jsonl"):
        rows = [{"text": row} if isinstance(row, str) else row for row in rows]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return write


def text_batches(path, repeat=False, inputs=None, context=32, vocabulary=None, **options):
    defaults = {"global_batch_size": 3, "is_training": True, "seed": 5, "tokenizer": "bytes", "drop_remainder": False}
    config = TextDataConfig(repeat=repeat, **{"input_path": path, **defaults, **options})
    config.validate()
    return text_stream(config, ByteTokenizer(), context=context, inputs=inputs, vocabulary=vocabulary)


def decoded(stream):
    """The texts of all segments."""
    found = []
    for inputs, _ in stream:
        for tokens, segments in zip(inputs["token_ids"], inputs["segment_ids"], strict=True):
            found += [ByteTokenizer().decode(tokens[segments == n]) for n in range(1, segments.max() + 1)]
    return found


@pytest.mark.parametrize("packing", [False, True])
def test_batches_are_the_texts(write, packing):
    stream = text_batches(write(TEXTS), packing=packing, inputs=PACKED)
    assert sorted(decoded(stream)) == sorted(TEXTS)
    assert stream.notes[0] == f"14 documents, {sum(map(len, TEXTS)) + 14:,} tokens"


def test_labels_are_the_next_bytes_and_the_end(write):
    (inputs, labels), *_ = text_batches(write(["abc"]), global_batch_size=1, context=5)
    assert inputs["token_ids"].tolist() == [[97, 98, 99, 257, 257]]
    assert labels.tolist() == [[98, 99, 256, IGNORED, IGNORED]]
    assert inputs["padding_mask"].tolist() == [[True, True, True, False, False]]
    assert set(inputs) == {"token_ids", "padding_mask"}


def test_tokens_alone(write):
    (tokens, labels), *_ = text_batches(write(["abc"]), global_batch_size=1, context=3, inputs="token_ids")
    assert tokens.tolist() == [[97, 98, 99]]
    assert labels.tolist() == [[98, 99, 256]]


KINDS = {
    "packed": {"packing": True},
    "buckets": {"buckets": [8, 16]},
    "split": {"long_texts": "split", "context": 7},
    "packed split": {"long_texts": "split", "context": 7, "packing": True},
    "evaluation": {"is_training": False},
    "without remainder": {"drop_remainder": True},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_contract(write, check, kind):
    path = write(TEXTS)
    check(lambda repeat: text_batches(path, repeat, **KINDS[kind]))


def write_parquet(folder):
    pq.write_table(pa.table({"text": TEXTS}), folder / "a.parquet", row_group_size=5)
    return str(folder / "a.parquet")


def write_csv(folder):
    (folder / "a.csv").write_text("text,n\n" + "".join(f'"{text}",{n}\n' for n, text in enumerate(TEXTS)))
    return str(folder / "a.csv")


def write_text(folder):
    (folder / "a.txt").write_text("\n\n".join(TEXTS[:9]))
    (folder / "b.txt").write_text("\n\n".join(TEXTS[9:]) + "\n")
    return str(folder / "*.txt")


def write_array_record(folder):
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(folder / "a.array_record"), "group_size:1")
    for text in TEXTS:
        writer.write(json.dumps({"text": text}).encode())
    writer.close()
    return str(folder / "a.array_record")


def write_dataset(folder):
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(folder / "saved")
    return str(folder / "saved")


SOURCES = {
    "parquet": write_parquet,
    "csv": write_csv,
    "text": write_text,
    "array_record": write_array_record,
    "dataset": write_dataset,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", SOURCES)
def test_every_source_gives_the_batches_of_json_lines_and_resumes_exactly(tmp_path, write, kind):
    path = SOURCES[kind](tmp_path)

    def factory(repeat):
        return text_batches(path, repeat, packing=True, documents="paragraph")

    expected = list(text_batches(write(TEXTS), packing=True))
    if kind == "text":  # the last paragraph of a file ends with a newline
        assert len(list(factory(False))) == len(expected)
    else:
        assert all(streams.same_batch(a, b) for a, b in zip(factory(False), expected, strict=True))
    streams.check_restores_everywhere(factory)
    assert factory(False).files
    assert not factory(False).why_not_exact


def test_tokens_are_made_once(write, tmp_path, monkeypatch):
    path = write(TEXTS)
    first = list(text_batches(path))
    monkeypatch.setattr(ByteTokenizer, "encode", lambda self, texts: pytest.fail("tokenized again"))
    assert all(streams.same_batch(a, b) for a, b in zip(first, text_batches(path), strict=True))


def test_changed_file_is_tokenized_again(write):
    path = write(TEXTS)
    list(text_batches(path))
    write(TEXTS[::-1] + ["new"])
    assert "new" in decoded(text_batches(path, inputs=PACKED))


def test_prompts_do_not_count(write):
    path = write([{"q": "ab", "a": "cd"}])
    options = {"prompt_column": "q", "completion_column": "a", "global_batch_size": 1, "context": 4}
    (inputs, labels), *_ = text_batches(path, **options)
    assert inputs["token_ids"].tolist() == [[97, 98, 99, 100]]
    assert labels.tolist() == [[IGNORED, 99, 100, 256]]
    (_, labels), *_ = text_batches(path, **options, loss_on="all")
    assert labels.tolist() == [[98, 99, 100, 256]]


def test_only_the_assistant_counts(write):
    chat = [("user", "Hi"), ("assistant", "Hello"), ("user", "Bye"), ("assistant", "Ciao")]
    path = write([{"chat": [{"role": role, "content": text} for role, text in chat]}])
    (inputs, labels), *_ = text_batches(path, messages_column="chat", global_batch_size=1, context=128)
    tokens = inputs["token_ids"][0]
    learned = [label for label in labels[0].tolist() if label != IGNORED]
    assert ByteTokenizer().decode(learned) == "HelloCiao"
    assert learned.count(256) == 2, "the end of each answer is learned"
    assert ByteTokenizer().decode(tokens) == "<|user|>\nHi\n<|assistant|>\nHello\n<|user|>\nBye\n<|assistant|>\nCiao\n"


def refused(*args, **options):
    with pytest.raises(UsageError) as caught:
        text_batches(*args, **options)
    assert "\n" not in str(caught.value)
    return caught.value


def test_long_texts_are_refused_split_or_cut_and_the_log_says_so(write):
    path = write(["short", "a" * 20, "b" * 30])
    error = refused(path, context=8)
    assert (error.key, error.origin.rpartition(",")[2]) == ("input_path", " line 2")
    assert error.reason == "has 21 tokens, but a row takes 9; 2 of 3 documents are too long"

    split = text_batches(path, context=8, long_texts="split", inputs=PACKED)
    assert "2 documents of more than 9 tokens are split" in split.notes
    assert sum((labels != IGNORED).sum() for _, labels in split) == 5 + 20 + 30

    truncated = text_batches(path, context=8, long_texts="truncate", inputs=PACKED)
    assert "2 documents of more than 9 tokens are cut off: 34 tokens are not used" in truncated.notes
    assert sorted(decoded(truncated)) == ["a" * 8, "b" * 8, "short"]


def test_empty_texts_are_counted_or_refused(write):
    path = write(["one", "", "two", ""])
    stream = text_batches(path, add_end=False, inputs=PACKED)
    assert any(note.startswith("2 documents with nothing to predict are skipped") for note in stream.notes)
    assert any("line 2" in note for note in stream.notes)
    error = refused(path, empty_texts="refuse")
    assert error.origin.endswith("line 2")
    assert "2 of 4 documents" in error.reason
    assert refused(write(["", ""])).origin.endswith("line 1")


def test_chat_without_assistant_has_nothing_to_predict(write):
    path = write([{"chat": [{"role": "user", "content": "Hi"}]}])
    assert "no token of it counts" in refused(path, messages_column="chat").reason


@pytest.mark.parametrize(
    ("rows", "options", "reason"),
    [
        ([{"txt": "a"}], {}, "has no column 'text'"),
        ([{"text": 5}], {}, "column 'text' holds a int, not a text"),
        ([{"text": None}], {}, "column 'text' holds nothing, not a text"),
        ([{"chat": "Hi"}], {"messages_column": "chat"}, "expected a list of messages"),
        ([{"chat": [{"content": "Hi"}]}], {"messages_column": "chat"}, "message 0 has no role"),
    ],
)
def test_rows_that_are_no_documents(write, rows, options, reason):
    error = refused(write(["first", *rows] if not options else rows), **options)
    assert reason in error.reason
    assert error.origin.endswith("line 1" if options else "line 2")


def test_tokenizer_that_does_not_fit(write):
    assert refused(write(TEXTS), vocabulary=256).key == "tokenizer"


def test_row_longer_than_the_context(write):
    assert refused(write(TEXTS), sequence_length=64, context=32).key == "sequence_length"


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"prompt_column": "q"}, "completion_column"),
        ({"prompt_column": "q", "completion_column": "a", "messages_column": "m"}, "messages_column"),
        ({"packing": True, "buckets": [4]}, "buckets"),
        ({"buckets": [0]}, "buckets"),
        ({"sequence_length": 0}, "sequence_length"),
        ({"streaming": True}, "streaming"),
        ({"dataset": "x"}, "dataset"),
        ({"tfds_name": "x", "tfds_split": "train", "input_path": ""}, "tfds_name"),
    ],
)
def test_settings_that_exclude_each_other(options, key):
    assert key in [problem.key for problem in refused("a.jsonl", **options).problems]


def test_fewer_rows_than_a_batch(write):
    assert refused(write(["one", "two"]), drop_remainder=True).key == "global_batch_size"


def test_tokens_need_two_bytes_each(write, tmp_path):
    text_batches(write(TEXTS))
    (file,) = (tmp_path / "cache").rglob("tokens.bin")
    assert file.stat().st_size == 2 * (sum(map(len, TEXTS)) + len(TEXTS))
    assert np.fromfile(file, np.uint16)[len(TEXTS[0])] == 256
