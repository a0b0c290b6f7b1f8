"""Text as batches of tokens: documents are tokenized once, then packed, or padded to a few lengths.

config.py       the data section of a task that reads text
reading.py      `text_stream`: from a configuration to batches
tokenizers.py   from texts to numbers
documents.py    from rows to documents: tokens, and which of them count in the loss
chat.py         chat templates
token_store.py  tokenized documents, in files that later runs find again
packing.py      which documents share a row
plans.py        which pieces of documents each batch has
stream.py       batches of tokens
streaming.py    Hugging Face datasets that are read as a stream
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
