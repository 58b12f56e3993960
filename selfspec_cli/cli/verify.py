"""`selfspec verify`: is decoding exact with this model, on this machine, in this number format?"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from selfspec_cli.errors import ConfigError

if TYPE_CHECKING:
    from selfspec_cli.checkup.records import CheckupReport
    from selfspec_cli.engine.load import LoadOptions


def verify(
    *,
    model: Annotated[
        str, typer.Option("--model", "-m", help="demo, a local folder, a .gguf file or a hub id.")
    ],
    device: Annotated[str, typer.Option(help="auto, cpu or cuda.")] = "auto",
    dtype: Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")] = "auto",
    engine: Annotated[
        str, typer.Option(help="Kernels: auto, compiled or eager; auto is compiled where it pays.")
    ] = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Of prompts and draws.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on stderr.")] = False,
) -> None:
    """Prove on this machine that speculative decoding of a model changes nothing.

    Example: selfspec verify -m demo

    Checks the layer view against the model's own forward, the engine, the KV cache after every
    round, greedy tokens against plain decoding and transformers, ragged batches, and the law of
    sampled tokens. In bfloat16 and float16 outputs that part at a numeric near-tie are listed.
    Reads the model, writes nothing. Exit codes: 0 proved, 1 differs (where, by how much),
    2 refused or input error.
    """
    options = _options(model, device, dtype, engine)
    from selfspec_cli.checkup.run import run
    from selfspec_cli.cli.progress import TerminalProgress
    from selfspec_cli.engine.load import quiet_library

    quiet_library()
    report = run(options, TerminalProgress(quiet=quiet), seed=seed)
    if as_json:
        from selfspec_cli.storage import SCHEMA_VERSION

        document = {"schema_version": SCHEMA_VERSION, **report.to_document()}
        typer.echo(json.dumps(document, allow_nan=False))
    else:
        _print(report)
    raise typer.Exit(report.exit_code)


def _options(model: str, device: str, dtype: str, engine: str) -> LoadOptions:
    """Check names before any weight is read."""
    from selfspec_cli.engine.engines import ENGINES
    from selfspec_cli.engine.load import DTYPES, LoadOptions, resolve_device

    known = ("auto", *DTYPES)
    if dtype not in known:
        raise ConfigError(f"unknown dtype {dtype!r}", where="--dtype", hint=_use(known))
    resolve_device(device)
    for name in ENGINES:
        if name == engine:
            return LoadOptions(model=model, device=device, dtype=dtype, engine=name)
    raise ConfigError(f"unknown engine {engine!r}", where="--engine", hint=_use(ENGINES))


def _use(names: tuple[str, ...]) -> str:
    return f"Use {', '.join(names)}."


def _print(report: CheckupReport) -> None:
    from rich.console import Console

    from selfspec_cli.cli.verify_output import print_report

    print_report(report, Console(highlight=False, soft_wrap=True))
