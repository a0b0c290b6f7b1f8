"""Secrets never reach a sink: what a run stores, prints or logs passes through here first.

    redaction.learn(layer.tree)                            # as soon as values are read
    redaction.remember(value, reference="${secret:NAME}")  # a value that is known to be secret
    storage.write_text(path, dump(redaction.tree(tree)))   # a tree to store or print
    print(redaction.text(message))                         # a message for a person

What was learned is known to the whole process. Numbers and booleans are never secret for their name alone, and
words about vocabularies (`num_tokens`, `cls_token`) and keys of tables (`primary_key`) name no secrets.

secret_names.py    which names imply a secret
secret_shapes.py   what secrets look like in text
known_secrets.py   the secrets that this process has seen
value_tree.py      a tree of values, with what each name implies
hiding.py          learn, remember; tree, text, name
log_guard.py       log records and warnings
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
