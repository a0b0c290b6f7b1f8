"""Other tools' spellings: Model Garden's `--model_dir=…` and absl's logging flags."""

from collections.abc import Iterator, Sequence

_SWITCHES = {"--alsologtostderr", "--logtostderr", "--showprefixforinfo"}
_VALUED = {"--v", "--verbosity", "--stderrthreshold"}


def normalised(words: Sequence[str]) -> list[str]:
    """Returns a command line as our parser wants it.

        normalised(["train", "--model_dir=my_dir", "--alsologtostderr"])  # ["train", "--model-dir=my_dir"]

    Underscores in the name of an option become dashes; its value, and everything after a lone `--`, stays as
    it is. Flags of absl's logging are dropped, with their values.
    """
    words = list(words)
    end = words.index("--") if "--" in words else len(words)
    return [*_spelled(words[:end]), *words[end:]]


def _spelled(words: Sequence[str]) -> Iterator[str]:
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        if name in _VALUED and not equals:
            next(rest, None)
        elif name in _VALUED or _is_switch(name):
            continue
        elif name.startswith("--"):
            yield name.replace("_", "-") + equals + value
        else:
            yield word


def _is_switch(name: str) -> bool:
    """Tells whether it is one of absl's on-off flags, also in the negative: `--noalsologtostderr`."""
    return name in _SWITCHES or (name.startswith("--no") and f"--{name[4:]}" in _SWITCHES)
