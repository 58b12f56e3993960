"""In which writing a prompt is: known when a request arrives, and acceptance depends on it."""

import re

from selfspec_cli.records import Request, Script

_HAN = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_KANA = "\u3040-\u30ff"
# Han and kana by the character, other writing by the word: about the tokens they become.
_UNIT = re.compile(rf"(?P<han>[{_HAN}])|[{_KANA}]|(?P<word>[^\W\d_{_HAN}{_KANA}]+)")
_LATIN = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]")
_MOSTLY = 0.8  # share at which one script gives the prompt its name


def prompt_text(request: Request) -> str:
    """Return the text of a prompt: all turns, one after the other; empty for token ids."""
    if request.messages is None:
        return request.prompt or ""
    return "\n".join(str(message.get("content", "")) for message in request.messages)


def prompt_script(request: Request) -> Script | None:
    """Return the script of a prompt, or None where it is given as token ids.

    Han and kana characters count one each, words of other scripts too. `latin` and `han` need 80 %
    of these, all turns and passages included. `other` is a prompt without letters, or with at
    least half in other scripts (Cyrillic, kana, Hangul, Arabic and so on); the rest is `mixed`,
    for example Chinese about program code.
    """
    if request.prompt_token_ids is not None:
        return None
    return script_of(prompt_text(request))


def script_of(text: str) -> Script:
    """Return the script of a text, as `prompt_script`."""
    num_all = num_han = num_latin = 0
    for unit in _UNIT.finditer(text):
        num_all += 1
        num_han += unit["han"] is not None
        num_latin += unit["word"] is not None and _LATIN.match(unit["word"]) is not None
    if 2 * (num_han + num_latin) <= num_all:
        return "other"
    if num_latin >= _MOSTLY * num_all:
        return "latin"
    return "han" if num_han >= _MOSTLY * num_all else "mixed"
