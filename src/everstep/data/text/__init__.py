"""Text as batches of tokens: documents are tokenized once, then packed, or padded to a few lengths.

config.py       the data section of a task that reads text: columns, tokenizer, `sequence_length`, `packing`,
                `buckets`, texts that are too long or empty: keys and defaults
reading.py      `text_stream`: from a configuration to batches; refuses a tokenizer larger than the model's
                vocabulary, rows longer than its context, too few rows
tokenizers.py   bytes, a `tokenizer.json`, a KerasHub tokenizer; start, end and padding tokens, special tokens in a
                text
documents.py    from rows to documents: prompt and completion, start and end tokens, which tokens count in the loss
                (of a chat: `chat.py`)
chat.py         chat templates: the default one, Jinja, which pieces the assistant writes
token_store.py  the cache of tokenized documents: where, when it is used again, when it is damaged
packing.py      `packing`: which documents share a row, in each epoch; texts are cut in `stream.py`
plans.py        which pieces of documents each batch has: packed rows, or rows of similar length (`buckets`)
stream.py       batches of tokens: padding, masks, labels, `segment_ids` that keep documents of a row apart; long texts
                split, cut or refused, empty ones skipped
streaming.py    `streaming`: Hugging Face datasets that are read as they come: shuffle buffer, rows of several
                documents, position
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.data.text.config import TextDataConfig
    from everstep.data.text.reading import text_stream
    from everstep.data.text.stream import (
        POSITIONS,
        SEGMENTS,
        TOKENS,
        TextStream,
    )
    from everstep.data.text.tokenizers import (
        ByteTokenizer,
        Tokenizer,
        make_tokenizer,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
