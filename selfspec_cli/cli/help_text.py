"""Help that flows with the screen: docstrings break lines for source code, not for a terminal."""

import typer


def flow(text: str) -> str:
    """Return a text whose paragraphs are one line each; blank lines stay between them.

    Args:
        text: a docstring, indented or not.
    """
    paragraphs = [" ".join(paragraph.split()) for paragraph in text.split("\n\n")]
    return "\n\n".join(filter(None, paragraphs))


def flow_help(program: typer.Typer) -> None:
    """Let the help of every command of a program flow, so that no screen leaves ragged lines.

    Args:
        program: with its commands registered.
    """
    for command in program.registered_commands:
        if command.callback is not None and command.callback.__doc__:
            command.help = flow(command.help or command.callback.__doc__)
