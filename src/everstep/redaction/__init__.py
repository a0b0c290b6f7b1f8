"""Secrets never reach a sink: what a run stores, prints or logs passes through here first.

    redaction.learn(layer.tree)                            # as soon as values are read
    redaction.remember(value, reference="${secret:NAME}")  # a value that is known to be secret
    storage.write_text(path, dump(redaction.tree(tree)))   # a tree to store or print
    print(redaction.text(message))                         # a message for a person

What was learned is known to the whole process. Numbers and booleans are never secret for their name alone, and
words about vocabularies (`num_tokens`, `cls_token`) and keys of tables (`primary_key`) name no secrets.

secret_names.py   which names imply a secret (`db_password`, `HF_TOKEN`), which do not (`num_tokens`)
secret_shapes.py  what secrets look like in text: keys, tokens, passwords in URLs, `--password …`
known_secrets.py  the secrets that this process has seen, in all spellings (JSON, base64 …), at least 6 letters
value_tree.py     a tree of values, with what each name implies for those below it
hiding.py         learn, remember; tree, text, name: what is shown in place of a secret; common words that are kept
log_guard.py      log records and warnings
"""

from everstep.redaction.hiding import holds_redacted, learn, learn_text, name, remember, text, tree
from everstep.redaction.log_guard import LogFilter, guard_process
from everstep.redaction.secret_shapes import MARK, is_redacted

__all__ = [
    "MARK",
    "LogFilter",
    "guard_process",
    "holds_redacted",
    "is_redacted",
    "learn",
    "learn_text",
    "name",
    "remember",
    "text",
    "tree",
]
