"""Prompts to ids: one BOS, the template's own refusals, no invented template."""

import datetime

import pytest

from selfspec_cli.records import Request
from selfspec_cli.trace.encode import Encoder
from selfspec_cli.trace.rows import RowRefusedError

BOS, EOS = 0, 1
PLAIN = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
WITH_BOS = "{{ bos_token }}" + PLAIN


def chat(content: str = "hi", **fields: object) -> Request:
    message = {"role": "user", "content": content}
    return Request(request_id="r", task=None, messages=(message,), **fields)


def raw(prompt: str) -> Request:
    return Request(request_id="r", task=None, prompt=prompt)


def test_prompt_ids_of_a_template_with_bos_have_one(make_tokenizer):
    tokenizer = make_tokenizer(WITH_BOS)
    ids = Encoder(tokenizer=tokenizer).prompt_ids(chat())
    text = "<user>hi<assistant>"
    assert ids == (BOS, *tokenizer.encode(text, add_special_tokens=False))
    twin = tokenizer.encode(f"<bos>{text}")  # what encoding with special tokens would give
    assert twin[:2] == [BOS, BOS], "the broken twin must double it"


def test_prompt_ids_of_a_template_without_bos_have_none(make_tokenizer):
    """As the servers do: a template that wants a BOS writes it."""
    assert BOS not in Encoder(tokenizer=make_tokenizer(PLAIN)).prompt_ids(chat())


def test_prompt_ids_of_a_raw_prompt_get_bos_once_whether_written_or_not(make_tokenizer):
    encoder = Encoder(tokenizer=make_tokenizer())
    assert encoder.prompt_ids(raw("hi")) == encoder.prompt_ids(raw("<bos>hi"))
    assert encoder.prompt_ids(raw("hi")).count(BOS) == 1


def test_prompt_ids_keep_given_ids_as_they_are(make_tokenizer):
    request = Request(request_id="r", task=None, prompt_token_ids=(BOS, BOS, 9))
    assert Encoder(tokenizer=make_tokenizer()).prompt_ids(request) == (BOS, BOS, 9)


@pytest.mark.parametrize(
    "request_",
    [
        raw(""),
        Request(request_id="r", task=None, prompt_token_ids=()),
        Request(request_id="r", task=None, messages=()),
    ],
)
def test_prompt_ids_of_nothing_are_refused(make_tokenizer, request_):
    with pytest.raises(RowRefusedError, match="empty prompt"):
        Encoder(tokenizer=make_tokenizer(PLAIN)).prompt_ids(request_)


def test_render_refusal_carries_the_templates_own_message(make_tokenizer):
    template = "{{ raise_exception('this one\n takes no chats') }}"
    with pytest.raises(RowRefusedError) as caught:
        Encoder(tokenizer=make_tokenizer(template)).render(chat())
    assert caught.value.reason == "chat template refused"
    assert caught.value.detail == "this one takes no chats"


@pytest.mark.parametrize("template", ["{{ messages[7].content + 1 }}", "{% for %}", "{{ 1 / 0 }}"])
def test_render_survives_any_error_of_a_template(make_tokenizer, template):
    with pytest.raises(RowRefusedError, match="chat template refused"):
        Encoder(tokenizer=make_tokenizer(template)).render(chat())


def test_render_prefers_the_template_given(make_tokenizer):
    encoder = Encoder(tokenizer=make_tokenizer(PLAIN), chat_template="{{ messages[0].content }}!")
    assert encoder.render(chat()) == "hi!"


def test_render_never_invents_a_template(make_tokenizer):
    encoder = Encoder(tokenizer=make_tokenizer())
    assert not encoder.has_template
    with pytest.raises(RowRefusedError, match="no chat template"):
        encoder.render(chat())


def test_render_gives_the_template_the_tools(make_tokenizer):
    encoder = Encoder(tokenizer=make_tokenizer("{{ tools[0].function.name }}"))
    tool = {"type": "function", "function": {"name": "weather"}}
    assert encoder.render(chat(tools=(tool,))) == "weather"


def test_text_ids_of_a_long_text_print_no_warning(make_tokenizer, capfd):
    tokenizer = make_tokenizer()
    tokenizer.model_max_length = 8
    assert len(Encoder(tokenizer=tokenizer).text_ids("x" * 50)) == 50
    assert "longer than" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ strftime_now('%d %b %Y') }}", "03 Feb 2020"),
        ('{% set d = strftime_now( "%Y-%m-%d" ) %}{{ d }}', "2020-02-03"),
        ("{% if strftime_now is defined %}{{ strftime_now('%H') }}{% endif %}", "04"),
        ("{{ strftime_now('%d') ~ strftime_now('%m') }}", "0302"),
    ],
)
@pytest.mark.parametrize("own", [True, False])
def test_a_dated_template_prints_the_time_of_its_run(make_tokenizer, template, expected, own):
    """Broken twin: without the run's time the prompt is today's, and tomorrow it is another."""
    given = None if own else template
    tokenizer = make_tokenizer(template if own else PLAIN)
    moment = datetime.datetime(2020, 2, 3, 4, 5, 6)
    encoder = Encoder(tokenizer=tokenizer, chat_template=given, template_time=moment)
    assert encoder.render(chat()) == expected
    if len(expected) > 2:
        assert Encoder(tokenizer=tokenizer, chat_template=given).render(chat()) != expected
