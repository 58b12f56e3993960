"""In which writing a prompt is: known when a request arrives, and acceptance depends on it."""

import re

from selfspec_cli.records import Request, Script

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_LATIN = re.compile("[A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff]")
_MOSTLY = 0.8  # share of the letters at which one script gives the prompt its name


def prompt_text(request: Request) -> str:
    """Return the text of a prompt: all turns, one after the other; empty for token ids."""
    if request.messages is None:
        return request.prompt or ""
    return "\n".join(str(message.get("content", "")) for message in request.messages)


def prompt_script(request: Request) -> Script | None:
    """Return the script of a prompt, or None where it is given as token ids.

    `latin` and `han` need 80 % of the letters, all turns and passages included. `other` is a
    prompt without letters or with at least half of them in other scripts (Cyrillic, kana, Hangul,
    Arabic and so on); the rest is `mixed`, for example Chinese about program code.
    """
    if request.prompt_token_ids is not None:
        return None
    return script_of(prompt_text(request))


def script_of(text: str) -> Script:
    """Return the script of a text, as `prompt_script`."""
    num_han, num_latin = len(_HAN.findall(text)), len(_LATIN.findall(text))
    num_letters = sum(map(str.isalpha, text))
    if 2 * (num_han + num_latin) <= num_letters:
        return "other"
    if num_latin >= _MOSTLY * num_letters:
        return "latin"
    return "han" if num_han >= _MOSTLY * num_letters else "mixed"
