"""`selfspec gate`: may this plan be rolled out? Rules held against a run's files."""

import json
from pathlib import Path
from typing import Annotated

import typer


def gate(
    run: Annotated[Path, typer.Argument(help="Run directory that calibrate wrote.")],
    rules: Annotated[
        str, typer.Option("--rules", metavar="NAME|FILE", help="gate, gate-strict or a YAML file.")
    ] = "gate",
    min_speedup: Annotated[
        float | None,
        typer.Option(metavar="X", help="Least lower bound of each bucket's speedup, 1 + margin."),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(metavar="N", help="P99 of requests at once, for memory.")
    ] = None,
    traffic: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run of today's traffic, for drift.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="Folder of the model that is served.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No table.")] = False,
) -> None:
    """Check a run before rollout: speed, tail, output, memory, and whether it is still true.

    Example: selfspec gate reports/quickstart --rules gate-strict --concurrency 8

    Reads the run's files and the rules; writes nothing and needs no model. Exit codes: 0 pass,
    1 failed, 2 usage or input error, 3 no verdict.
    """
    from selfspec_cli.gate.rules_file import load_rules

    loaded = load_rules(rules, min_speedup=min_speedup, concurrency=concurrency)
    from selfspec_cli.gate.run_gate import GateOptions, run_gate

    report = run_gate(run, loaded, GateOptions(model=model, traffic=traffic))
    from selfspec_cli.cli.gate_output import print_gate
    from selfspec_cli.gate.document import gate_document

    if as_json:
        typer.echo(json.dumps(gate_document(report), allow_nan=False))
    elif not quiet:
        print_gate(report)
    raise typer.Exit(report.exit_code)
