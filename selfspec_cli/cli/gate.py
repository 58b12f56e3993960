"""`selfspec gate`: may this plan be rolled out? Rules held against a run's files."""

import json
from pathlib import Path
from typing import Annotated

import typer

from selfspec_cli.errors import ConfigError


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
    baseline: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Run on the same traces not to fall behind.")
    ] = None,
    fail_on: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-on",
            metavar="METRIC:LIMIT",
            help="Against the baseline, may be repeated: speedup:-3%, acceptance:-0.02, p99:+5%.",
        ),
    ] = None,
    junit: Annotated[
        Path | None, typer.Option(metavar="FILE", help="JUnit XML, one case a check.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No table.")] = False,
) -> None:
    """Check a run before rollout: speed, tail, output, memory, and whether it is still true.

    Example: selfspec gate reports/quickstart --rules gate-strict --concurrency 8

    Reads the run's files and the rules; writes --junit alone and needs no model. In a GitHub
    workflow it adds annotations and a step summary. Exit codes: 0 pass, 1 failed, 2 usage or
    input error, 3 no verdict.
    """
    if fail_on and baseline is None:
        raise ConfigError(
            "is a loss against another run, and none is given",
            where="--fail-on",
            hint="Add --baseline RUN; --min-speedup X is a limit without one.",
        )
    from selfspec_cli.gate.junit import check_place
    from selfspec_cli.gate.rules_file import load_rules

    if junit is not None:
        check_place(junit)
    loaded = load_rules(rules, min_speedup=min_speedup, concurrency=concurrency)
    from selfspec_cli.gate.fail_on import parse_fail_on
    from selfspec_cli.gate.run_gate import GateOptions, run_gate

    limits = tuple(parse_fail_on(text) for text in fail_on or ())
    options = GateOptions(model=model, traffic=traffic, baseline=baseline, fail_on=limits)
    report = run_gate(run, loaded, options)
    from selfspec_cli.cli.gate_output import print_gate, tell_ci
    from selfspec_cli.gate.document import gate_document

    tell_ci(report, junit)
    if as_json:
        typer.echo(json.dumps(gate_document(report), allow_nan=False))
    elif not quiet:
        print_gate(report)
    raise typer.Exit(report.exit_code)
