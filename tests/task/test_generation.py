"""Text that a language model writes: at evaluations, for a prompt, and sample by sample."""

import csv
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import everstep
from everstep.cli.main import main
from everstep.errors import UsageError
from everstep.report.split_data import read_splits
from everstep.task.config import GenerationConfig
from everstep.task.generation import IGNORED, choose_tokens, continue_tokens, document_loss, documents

pytestmark = pytest.mark.backend


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of `text/tiny` that has learned a little."""
    directory = tmp_path_factory.mktemp("generation") / "run"
    params = everstep.get_exp_config("text/tiny")
    params.override(
        {
            "task": {"model": {"width": 16, "depth": 1, "hidden": 16}, "validation_data": {"limit_batches": 1}},
            "trainer": {"train_steps": 40, "steps_per_loop": 20, "validation_interval": 40, "checkpoint_interval": 40},
        }
    )
    params.override({"trainer": {"tracking": {"samples": 4}}})
    everstep.run_experiment(
        everstep.get_task(params.task), params, directory, experiment="text/tiny", export=False, verbose=False
    )
    return directory


def test_texts_at_an_evaluation_are_those_of_the_checkpoint(run, capsys):
    shown = (run / "samples" / "40" / "generated.txt").read_text().split("\n\n")
    prompts = [text.partition("⟶")[0] for text in shown]
    assert len(prompts) == 4
    assert main(["generate", str(run), *(word for prompt in prompts for word in ("--prompt", prompt)), "--json"]) == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [f"{one['prompt']}⟶{one['text']}" for one in answers] == [text.partition("\n")[0] for text in shown]


def test_drawn_texts_depend_on_the_seed(run, capsys):
    def drawn(seed):
        words = ["generate", str(run), "-p", "27+95=", "--temperature", "2", "--seed", str(seed), "--max-tokens", "2"]
        assert main(words) == 0
        return capsys.readouterr().out

    assert drawn(1) == drawn(1)
    assert len({drawn(seed) for seed in range(4)}) > 1


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([], "--prompt"),
        (["--prompt", "two"], "prompt"),
        (["--prompt", ""], "prompt"),
        (["--prompt", "12345678901"], "prompt"),
        (["--prompt", "1+1=", "--temperature", "-1"], "temperature"),
        (["--prompts", "nowhere.txt"], "--prompts"),
    ],
)
def test_wrong_prompts_are_one_line(run, capsys, words, key):
    assert main(["generate", str(run), *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert key in line


def test_a_run_that_writes_no_text_is_refused(tmp_path, capsys):
    params = everstep.get_exp_config("mnist/local")
    params.override({"trainer": {"train_steps": 1}, "task": {"validation_data": {"limit_batches": 1}}})
    everstep.run_experiment(
        everstep.get_task(params.task), params, tmp_path / "run", experiment="mnist/local", export=False, verbose=False
    )
    assert main(["generate", str(tmp_path / "run"), "-p", "a"]) == 2
    assert "writes no text" in capsys.readouterr().err
    # Its samples can be evaluated all the same: as classes.
    assert main(["eval", str(tmp_path / "run"), "--samples", "10"]) == 0
    (split,) = read_splits(tmp_path / "run" / "reports")
    assert (split.page["kind"], split.page["rows"]) == ("classification", 10)


def test_samples_are_written_one_by_one_with_their_texts(run, capsys):
    assert main(["eval", str(run), "--samples", "7"]) == 0
    assert "reports/report.html" in capsys.readouterr().err
    (split,) = read_splits(run / "reports")
    assert (split.page["kind"], split.page["rows"]) == ("text", 7)
    samples = split.page["samples"]
    assert all(sample["input"]["text"].endswith("=") for sample in samples)
    assert all(len(sample["target"]["text"]) == 3 for sample in samples)
    with open(run / "reports" / "validation.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"loss", "token_f1", "exact_match", "rougeL"} < set(rows[0])
    assert len({row["loss"] for row in rows}) > 1


def test_the_losses_of_all_samples_are_the_loss_of_the_evaluation(run, capsys):
    assert main(["eval", str(run), "--samples", "1000", "--json"]) == 0
    logged = json.loads(capsys.readouterr().out)["validation_loss"]
    with open(run / "reports" / "validation.csv", newline="") as file:
        losses = [float(row["loss"]) for row in csv.DictReader(file)]
    assert len(losses) == 1000
    assert np.mean(losses) == pytest.approx(logged, rel=1e-5)


# -- tokens ------------------------------------------------------------------------------------------------------------


def counting(rows):
    """A model that continues 3 with 4, and so on."""
    return np.eye(50)[np.minimum(rows + 1, 49)]


def test_each_text_ends_at_its_stop_token_its_length_or_the_end_of_the_context():
    config = GenerationConfig(max_tokens=5)
    assert continue_tokens(counting, [[1], [1, 2, 3], [40]], 8, config, stop=43) == [
        [2, 3, 4, 5, 6],
        [4, 5, 6, 7, 8],
        [41, 42],
    ]
    assert continue_tokens(counting, [[1, 2, 3], [1] * 4], 4, config) == [[4, 5], [2]]


@pytest.mark.parametrize("prompt", [[], [1] * 9])
def test_prompts_that_do_not_fit_are_refused(prompt):
    with pytest.raises(UsageError) as caught:
        continue_tokens(counting, [[1], prompt], 8, GenerationConfig())
    assert caught.value.key == "prompt"


def test_top_k_draws_only_from_likely_tokens():
    logits = np.log(np.array([[0.1, 0.5, 0.4, 0.0001]] * 500))
    random = np.random.default_rng(0)
    drawn = choose_tokens(logits, GenerationConfig(temperature=1.0, top_k=2), random)
    assert set(drawn.tolist()) == {1, 2}
    assert (drawn == 1).mean() == pytest.approx(5 / 9, abs=0.1)


def test_prompts_are_what_comes_before_the_labels_that_count():
    tokens = np.array([[5, 6, 7, 8, 0, 0]])
    labels = np.array([[IGNORED, 7, 8, IGNORED, IGNORED, IGNORED]])
    (found,) = documents(tokens, labels, GenerationConfig())
    assert (found.prompt, found.expected) == ([5, 6], [7, 8])


def test_packed_rows_are_several_texts():
    features = {"token_ids": np.array([[5, 6, 7, 8, 9, 0]]), "segment_ids": np.array([[1, 1, 1, 2, 2, 0]])}
    labels = np.array([[6, 7, IGNORED, 9, IGNORED, IGNORED]])
    found = list(documents(features, labels, GenerationConfig(prompt_tokens=1)))
    assert [(one.prompt, one.expected) for one in found] == [([5], [6, 7]), ([8], [9])]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.integers(0, 2**16))
def test_the_losses_of_packed_texts_are_those_of_each_alone(lengths, seed):
    random = np.random.default_rng(seed)
    width, classes = sum(lengths), 7
    tokens = random.integers(1, classes, (1, width + 1))
    segments = np.repeat(np.arange(1, len(lengths) + 1), lengths)[None]
    labels = np.where(np.append(segments[0, 1:], 0) == segments[0], tokens[0, 1:], IGNORED)[None]
    logits = random.normal(size=(1, width, classes))
    features = {"token_ids": tokens[:, :-1], "segment_ids": segments}
    found = list(documents(features, labels, GenerationConfig()))
    assert len(found) == sum(length > 1 for length in lengths)
    shares = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    for one in found:
        places = one.places[labels[0, one.places] != IGNORED]
        expected = -np.log(shares[0, places, labels[0, places]]).mean()
        assert document_loss(logits[0], labels[0], one) == pytest.approx(expected)


def test_of_a_short_text_half_is_the_prompt():
    tokens = np.array([[5, 6, 7, 8, 0, 0]])
    labels = np.array([[6, 7, 8, 9, IGNORED, IGNORED]])
    (found,) = documents(tokens, labels, GenerationConfig())
    assert (found.prompt, found.expected) == ([5, 6], [7, 8, 9])
