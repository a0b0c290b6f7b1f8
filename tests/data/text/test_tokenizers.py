"""Tokenizers: bytes, JSON files of the package `tokenizers`, and those of KerasHub presets."""

import json
from pathlib import Path

import numpy as np
import pytest

from everstep.data.text.tokenizers import ByteTokenizer, FileTokenizer, make_tokenizer
from everstep.errors import UsageError

TEXTS = ["the fox and the dog", "", "ünï→ the <|endoftext|> of it"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    tokenizers = pytest.importorskip("tokenizers")
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = ["<|endoftext|>", "<pad>"]
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    made.train_from_iterator(["the fox and the dog " * 20], trainer)
    made.enable_truncation(2)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    made.save(str(path))
    return str(path)


def test_bytes():
    tokenizer = ByteTokenizer()
    tokens = tokenizer.encode(TEXTS)
    assert [tokenizer.decode(each) for each in tokens] == TEXTS
    assert tokens[0].tolist() == list(b"the fox and the dog")
    assert tokenizer.decode([*tokens[0], tokenizer.end, tokenizer.padding]) == TEXTS[0]


def test_file(path):
    tokenizer = FileTokenizer(path)
    tokens = tokenizer.encode(TEXTS)
    assert [tokenizer.decode(each) for each in tokens] == TEXTS, "nothing is cut, and no text is a special token"
    assert len(tokens[0]) < len(TEXTS[0]) / 2
    assert (tokenizer.end, tokenizer.padding, tokenizer.start) == (0, 1, None)
    assert tokenizer.vocabulary <= 300
    assert max(each.max() for each in tokens if len(each)) < tokenizer.vocabulary


def test_special_tokens_of_chats(path):
    tokenizer = FileTokenizer(path)
    (tokens,) = tokenizer.encode_special(["fox<|endoftext|>dog"])
    assert tokens.tolist().count(0) == 1
    assert np.array_equal(tokens, np.concatenate([*tokenizer.encode(["fox"]), [0], *tokenizer.encode(["dog"])]))


def test_fingerprints_differ(path, tmp_path):
    content = json.loads(Path(path).read_text("utf-8"))
    content["added_tokens"][1]["content"] = "<other>"
    (tmp_path / "other.json").write_text(json.dumps(content))
    names = [ByteTokenizer().fingerprint, *(FileTokenizer(str(p)).fingerprint for p in (path, tmp_path / "other.json"))]
    assert len(set(names)) == 3


@pytest.mark.parametrize("name", ["", "byte", "none.json"])
def test_unknown_tokenizers(name):
    with pytest.raises(UsageError) as caught:
        make_tokenizer(name)
    assert caught.value.key == "tokenizer"


def test_file_that_is_no_tokenizer(tmp_path):
    (tmp_path / "a.json").write_text("{}")
    with pytest.raises(UsageError) as caught:
        make_tokenizer(str(tmp_path / "a.json"))
    assert "is not a tokenizer" in caught.value.reason
