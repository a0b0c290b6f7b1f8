"""Chat templates: the assistant's text is found, and a template can do nothing but write text."""

import json

import pytest

from everstep.data.text.chat import ChatTemplate
from everstep.errors import UsageError

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
    {"role": "assistant", "content": "Ciao"},
]
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_what_a_message_adds_counts():
    pieces = ChatTemplate(CHATML).pieces(CHAT)
    assert [piece.text for piece in pieces if piece.counts] == ["Hello<|im_end|>\n", "Ciao<|im_end|>\n"]
    assert "".join(piece.text for piece in pieces) == ChatTemplate(CHATML).render(CHAT)


def test_it_renders_as_transformers_does():
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    expected, _ = utils.render_jinja_template([CHAT], chat_template=CHATML, add_generation_prompt=True)
    assert ChatTemplate(CHATML).render(CHAT, prompt=True) == expected[0]


def test_marked_text_counts():
    template = "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content }}{% endgeneration %};{% endfor %}"
    pieces = ChatTemplate(template).pieces(CHAT[1:3])
    assert pieces == [("user:", False), ("Hi", True), (";assistant:", False), ("Hello", True), (";", False)]


def test_the_default_ends_answers():
    pieces = ChatTemplate(tokens={"eos_token": "<|end|>"}).pieces(CHAT[1:3])
    assert [piece.text for piece in pieces] == ["<|user|>\nHi\n<|assistant|>\n", "Hello<|end|>", "\n"]


def test_a_chat_may_begin_with_the_assistant():
    template = CHATML.replace("{% for", "{{ messages[0].role[:0] }}{% for", 1)
    pieces = ChatTemplate(template).pieces(CHAT[2:3])
    assert [piece.counts for piece in pieces] == [True]


def test_templates_in_files(tmp_path):
    (tmp_path / "chat.jinja").write_text(CHATML)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": CHATML}))
    for name in ("chat.jinja", "tokenizer_config.json"):
        assert ChatTemplate(str(tmp_path / name)).source == CHATML
    (tmp_path / "other.json").write_text("{}")
    for name in ("other.json", "none.jinja"):
        with pytest.raises(UsageError) as caught:
            ChatTemplate(str(tmp_path / name))
        assert caught.value.key == "chat_template"


@pytest.mark.parametrize(
    "attack",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ cycler.__init__.__globals__.os.system('touch {path}') }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ lipsum.__globals__['os'].popen('touch {path}').read() }}",
        "{{ ''|attr('__class__') }}",
        "{{ '{0.__class__}'.format(messages) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
        "{{ messages.append(1) }}",
        "{% for i in range(1000000000) %}x{% endfor %}",
    ],
)
def test_a_template_runs_no_code(tmp_path, attack):
    path = tmp_path / "touched"
    template = ChatTemplate(attack.replace("{path}", str(path)))
    try:
        written = template.render(CHAT)
    except ValueError as error:
        written, reason = "", str(error)
        assert reason.startswith("the chat template fails")
    assert written == ""
    assert not path.exists()


def test_a_template_that_is_not_jinja():
    with pytest.raises(UsageError) as caught:
        ChatTemplate("{% for %}")
    assert caught.value.key == "chat_template"


def test_a_template_may_refuse_messages():
    with pytest.raises(ValueError, match="no system role"):
        ChatTemplate("{{ raise_exception('no system role') }}").pieces(CHAT)


def test_text_that_changes_later_is_an_error():
    with pytest.raises(ValueError, match="generation"):
        ChatTemplate("{{ messages|length }}{{ messages[-1].content }}").pieces(CHAT)
