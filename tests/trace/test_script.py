"""Script of a prompt."""

import pytest

from selfspec_cli.records import Request
from selfspec_cli.trace.script import prompt_script, prompt_text, script_of


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Résumé of the meeting, Łódź 2024!", "latin"),
        ("请用三句话解释为什么海水是咸的。", "han"),
        ("请用 Python 写一个函数，统计一段中文文字里每个汉字出现的次数。", "han"),
        ("请解释 def add(values: list[int]) -> int: return sum(values) 的意思", "mixed"),
        ("Почему море солёное?", "other"),
        ("なぜ海はしょっぱいのですか", "other"),
        ("日本の首都はどこですか。一番大きい町もおしえてください", "other"),
        ('Translate "доброе утро" into English, please, and say when one uses it.', "latin"),
        ("12 + 30 = ?", "other"),
        ("", "other"),
    ],
)
def test_script_by_share_of_letters(text, script):
    assert script_of(text) == script


def test_all_turns_count_and_ids_have_no_script():
    turns = ({"role": "system", "content": "你是翻译。"}, {"role": "user", "content": "hi you"})
    chat = Request(request_id="c", task=None, messages=turns)
    assert prompt_text(chat) == "你是翻译。\nhi you"
    assert prompt_script(chat) == "mixed"
    ids = Request(request_id="i", task=None, prompt_token_ids=(1, 2))
    assert prompt_script(ids) is None
