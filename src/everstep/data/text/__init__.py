"""Text as batches of tokens: documents are tokenized once, then packed, or padded to a few lengths."""

from everstep.data.text.config import TextDataConfig
from everstep.data.text.reading import text_stream
from everstep.data.text.stream import TextStream
from everstep.data.text.tokenizers import ByteTokenizer, Tokenizer

__all__ = ["ByteTokenizer", "TextDataConfig", "TextStream", "Tokenizer", "text_stream"]
