"""Text of traces on a terminal: shown, never obeyed."""


def visible(text: str, keep: str = "") -> str:
    r"""Return `text` with every character that is not printable as an escape such as `\x1b`.

    Args:
        text: anything a trace, a template or an error may hold.
        keep: control characters to leave as they are, for example a line break.
    """
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in text)
