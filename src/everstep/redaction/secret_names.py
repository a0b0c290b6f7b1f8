"""Names of secrets: `db_password`, `apiKey`, `HF_TOKEN`, but not `num_tokens` or `sort_key`."""

import functools
import re
from typing import Literal

SecretKind = Literal["", "token", "secret"]
"""What a name implies for its value: nothing; that a text may be a token, secret or not; that it is secret."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_LONGEST = 200  # more is no name, and would take long
_STEMS = ("passw", "passphrase")
_SECRET = _words(
    "pwd secret secrets credential credentials apikey apikeys authorization bearer sas jwt webhook webhooks connstr"
)

# Two words that are secret together: the second, and what may stand before it.
_PHRASES = {
    "key": _words(
        "access account anthropic api auth deploy encryption gpg hmac huggingface license openai private secret "
        "signing ssh subscription wandb"
    ),
    "token": _words(
        "access api auth bearer csrf github gitlab hf hub huggingface jwt oauth private refresh sas secret security "
        "session slack wandb"
    ),
    "pass": _words("admin db ftp http login mail mysql pg postgres proxy redis root smtp ssh sudo user"),
    "string": {"connection", "conn"},
    "str": {"connection", "conn"},
    "header": {"auth"},
    "auth": {"basic", "http", "proxy"},
    "url": {"webhook"},
}

# After a secret's name these make it the name of something about the secret: password_file, secret_manager.
_ABOUT = _words(
    "algorithm arn backend column count description dir directory email enabled endpoint env expires expiry field file "
    "filename folder format helper hint host kind label len length lifetime login manager mode name namespace path "
    "policy project prompt provider region required scope size storage store title ttl type uri url user username var "
    "variable version"
)

# Beside `token` these are about vocabularies and transformers.
_VOCABULARY = _words(
    "additional answer audio aux begin blank bos budget class classification classifier cls concept context "
    "count cross decoder delimiter dim dims dist distill distillation document dropout dummy embed embedding "
    "embeddings empty encoder end eod eos eot expert extra fake fill first frame fusion global id ids image index "
    "initializer input keep label language last latent learnable length level limit line local loss mask "
    "masking max memory merge merging min mixer mixing new newline next null num out output pad padding patch "
    "pattern pause per placeholder pool pooling position prefix previous prompt prune query question rare ratio regex "
    "register registers rep repeat router routing segment selection sentence sentinel sep separator sequence "
    "shift smoothing sot source space speaker special split start stop strategy sub subword suffix "
    "summary target text think time timestep trigger type types unk unknown video vision visual "
    "weight whitespace word"
)


@functools.lru_cache(maxsize=8192)
def kind_of(name: str) -> SecretKind:
    """Returns what a key, a flag or a variable of this name holds.

    Example:
      kind_of("db.password")  # "secret"; so is "hub-token"
      kind_of("token")  # "token": it depends on the value
      kind_of("cls_token")  # "", as for "password_file"
    """
    if name == "PWD":  # in an environment, the current directory
        return ""
    words = [word.lower() for word in _WORD.findall(name[-_LONGEST:])]
    kinds = {_kind_at(words, index) for index in range(len(words)) if not _ABOUT.intersection(words[index + 1 :])}
    return "secret" if "secret" in kinds else "token" if "token" in kinds else ""


@functools.lru_cache(maxsize=8192)
def is_about(name: str) -> bool:
    """Returns whether, next to a secret, this names a detail that is none: `type`, `user`, `region`."""
    words = _WORD.findall(name)
    return bool(words) and words[-1].lower() in _ABOUT


def _kind_at(words: list[str], index: int) -> SecretKind:
    word = words[index]
    before = words[index - 1] if index else ""
    if word in _SECRET or any(stem in word for stem in _STEMS) or _ends_phrase(before, word):
        return "secret"
    if word == "token" and not _VOCABULARY.intersection([before, *words[index + 1 : index + 2]]):
        return "token"
    return ""


def _ends_phrase(before: str, word: str) -> bool:
    """Returns whether two words are a phrase: `api key`, `access tokens`; or one word is: `apikey`."""
    for last, firsts in _PHRASES.items():
        singular = word[:-1] if word == f"{last}s" else word
        if (singular == last and before in firsts) or (word.endswith(last) and word.removesuffix(last) in firsts):
            return True
    return False
