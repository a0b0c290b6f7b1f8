"""Chat templates: from messages to text, in pieces that count in the loss and pieces that do not.

A template is data, not code: Jinja's sandbox gives it the messages and nothing else. It is written as in Hugging Face's
`tokenizer_config.json`, so a model's own template works. Where it marks the assistant's text by
`{% generation %} … {% endgeneration %}`, that counts; else what each assistant's message adds to the text does.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everstep.errors import UsageError, missing_extra

DEFAULT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}"
    "{% else %}{{ message['content'] }}{% endif %}"
    "{{ '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
"""The template for models that have none."""

ASSISTANT = "assistant"
"""The role whose messages are learned."""

_BEGIN, _END = "\ufdd0", "\ufdd1"  # Unicode's noncharacters, which no text has
_MARKED = re.compile(f"{_BEGIN}(.*?){_END}", re.DOTALL)


class Piece(NamedTuple):
    """A part of a document's text."""

    text: str
    counts: bool


class ChatTemplate:
    """Renders messages.

    Args:
      template: A Jinja template, the path of one, or empty for a simple one.
      tokens: The special tokens that a template may name, such as `eos_token`, by these names.
      key: The configuration key, for errors.

    Raises:
      UsageError: The template cannot be read, or is not Jinja.
    """

    def __init__(self, template: str = "", tokens: Mapping[str, str] | None = None, key: str = "chat_template") -> None:
        self._key, self._source = key, _read(template, key) or DEFAULT_TEMPLATE
        self._tokens = {"bos_token": "", "eos_token": "", "pad_token": "", **(tokens or {})}
        self._template = _compiled(self._source, key)
        self._marks = "generation" in re.findall(r"{%-?\s*(\w+)", self._source)

    @property
    def source(self) -> str:
        """The template's text."""
        return self._source

    def render(self, messages: Sequence[Mapping[str, Any]], prompt: bool = False) -> str:
        """Returns the text of messages.

        Args:
          messages: The messages, each with a `role` and a `content`.
          prompt: Whether the text ends with the beginning of an assistant's message, for generation.

        Raises:
          ValueError: The template refuses the messages.
        """
        return self._rendered(messages, prompt).replace(_BEGIN, "").replace(_END, "")

    def pieces(self, messages: Any) -> list[Piece]:
        """Returns the text of messages in pieces; those that the assistant writes count.

        Raises:
          ValueError: They are not messages, or the template refuses them; says why.
        """
        _check(messages)
        if self._marks:
            parts = _MARKED.split(self._rendered(messages, prompt=False))
            return [Piece(part, number % 2 == 1) for number, part in enumerate(parts) if part]
        found: list[Piece] = []
        done = ""
        for number, message in enumerate(messages, start=1):
            if message["role"] != ASSISTANT:
                continue
            after = self.render(messages[:number])
            before = self._before(messages[: number - 1], after)
            if not before.startswith(done) or not after.startswith(before):
                raise ValueError(
                    "the template changes earlier text when a message is added, so the assistant's text cannot be "
                    "found; mark it by {% generation %} … {% endgeneration %}"
                )
            found += [Piece(before[len(done) :], False), Piece(after[len(before) :], True)]
            done = after
        whole = self.render(messages)
        if not whole.startswith(done):
            raise ValueError("the template changes earlier text when a message is added")
        return [piece for piece in [*found, Piece(whole[len(done) :], False)] if piece.text]

    def _before(self, messages: Sequence[Mapping[str, Any]], after: str) -> str:
        """Returns the text before an assistant's message: with the prompt for it, if that is how the message begins."""
        if not messages:
            return ""
        with_prompt = self.render(messages, prompt=True)
        return with_prompt if after.startswith(with_prompt) else self.render(messages)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], prompt: bool) -> str:
        try:
            return str(self._template.render(messages=list(messages), add_generation_prompt=prompt, **self._tokens))
        except Exception as error:  # an expression of the template may fail in any way
            raise ValueError(f"the chat template fails: {error or type(error).__name__}") from None


def _check(messages: Any) -> None:
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise ValueError("expected a list of messages, each with role and content")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f"message {number} has no role")
        if not isinstance(message.get("content"), str):
            raise ValueError(f"message {number} has no text as its content")
        if _BEGIN in message["content"] or _END in message["content"]:
            raise ValueError(f"message {number} has a character that is not one of Unicode")


def _read(template: str, key: str) -> str:
    """Returns the text of a template, which may be in a file."""
    if "\n" in template or "{" in template or not template.endswith((".jinja", ".jinja2", ".json")):
        return template
    try:
        text = Path(template).read_text("utf-8")
        if not template.endswith(".json"):
            return text
        found = json.loads(text).get("chat_template")
    except (OSError, ValueError, AttributeError) as error:
        raise UsageError(f"cannot be read: {error}", key=key, received=template) from None
    if not isinstance(found, str):
        raise UsageError("has no chat_template that is one text", key=key, received=template)
    return found


def _compiled(source: str, key: str) -> Any:
    """Returns a template that sees only what it is given: Jinja's sandbox refuses attributes that lead to code."""
    try:
        import jinja2
        import jinja2.ext
        import jinja2.nodes
        import jinja2.sandbox
    except ImportError:
        raise missing_extra("jinja2", "text", "a chat template") from None

    class Generation(jinja2.ext.Extension):
        """The tag `{% generation %}`: marks what the assistant writes."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            """Returns the node for one block."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

        def _mark(self, caller: Any) -> str:
            return f"{_BEGIN}{caller()}{_END}"

    def refuse(message: str) -> None:
        raise jinja2.TemplateError(message)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise UsageError(f"is not a Jinja template: {error.message} (line {error.lineno})", key=key) from None
