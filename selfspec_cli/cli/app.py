"""`selfspec`: entry point, and the one place where errors become messages and exit codes."""

import io
import os
import signal
import sys
import warnings
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

import typer

from selfspec_cli import __version__
from selfspec_cli.cli.bench import bench
from selfspec_cli.cli.calibrate import calibrate
from selfspec_cli.cli.compare import compare
from selfspec_cli.cli.demo_model import demo_model
from selfspec_cli.cli.doctor import doctor
from selfspec_cli.cli.gate import gate
from selfspec_cli.cli.help_text import flow_help
from selfspec_cli.cli.init import init
from selfspec_cli.cli.plan import plan
from selfspec_cli.cli.report import report
from selfspec_cli.cli.verify import verify
from selfspec_cli.cli.visible import visible
from selfspec_cli.errors import (
    EXIT_INPUT,
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    SelfspecError,
    short_of_memory,
)

COMPILE_CACHE = "TORCHINDUCTOR_CACHE_DIR"  # importing torch's compiler makes this folder
MORE_ROOM = "Use a smaller --dtype, shorter contexts or smaller batches, or another machine."

app = typer.Typer(
    name="selfspec",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    help="Should this traffic use self-speculative decoding, and with which exit layer and draft "
    "length? Start with: selfspec calibrate -m demo -t sample -o RUN",
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"selfspec {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options of the program itself."""


app.command()(calibrate)
app.command()(plan)
app.command()(bench)
app.command("demo-model")(demo_model)
app.command()(report)
app.command()(compare)
app.command()(gate)
app.command()(doctor)
app.command()(verify)
app.command()(init)
flow_help(app)


WrongUsage: Any = typer.BadParameter.__mro__[2]
"""ClickException of the click that typer brings: its own copy, or the package for old typers."""


class _TerminatedError(BaseException):
    """SIGTERM arrived; unwinds like Ctrl-C so that nothing is left half-written."""


class _InterruptedError(BaseException):
    """Ctrl-C. Typer's releases turn KeyboardInterrupt into different things; this passes them."""


def _on_sigterm(_signum: int, _frame: FrameType | None) -> None:
    raise _TerminatedError


def _on_sigint(_signum: int, _frame: FrameType | None) -> None:
    raise _InterruptedError


def main(argv: list[str] | None = None) -> None:
    """Run the program and leave with its exit code; no error of a user's becomes a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a label must not end a run in an ASCII locale
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _on_sigterm)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where it is ignored
        signal.signal(signal.SIGINT, _on_sigint)
    if not sys.warnoptions:  # whoever asks Python for warnings gets them all
        warnings.showwarning = _show_own
    sys.exit(_run(argv))


def _show_own(
    message: Warning | str,
    category: type[Warning],
    filename: str,  # noqa: ARG001
    lineno: int,  # noqa: ARG001
    file: TextIO | None = None,  # noqa: ARG001
    line: str | None = None,  # noqa: ARG001
) -> None:
    """Say our own warnings as plain lines; those that libraries have for programmers are not."""
    if category.__module__.startswith("selfspec_cli."):
        typer.echo(visible(str(message)), err=True)


def _run(argv: list[str] | None) -> int:
    command: Any = typer.main.get_command(app)
    try:
        result = command.main(args=argv, prog_name="selfspec", standalone_mode=False)
    except SelfspecError as error:
        typer.echo("error: " + visible(str(error), keep="\n"), err=True)
        return error.exit_code
    except (OSError, MemoryError, RuntimeError) as error:
        told = _about_machine(error)
        if not told:
            raise
        typer.echo(f"error: {visible(told, keep=chr(10))}", err=True)
        return EXIT_INPUT
    except WrongUsage as error:
        error.show()
        return error.exit_code
    except (_InterruptedError, KeyboardInterrupt, typer.Abort) as stop:
        typer.echo(f"interrupted; {_left(stop, argv)}", err=True)
        return EXIT_INTERRUPTED
    except _TerminatedError as stop:
        typer.echo(f"terminated; {_left(stop, argv)}", err=True)
        return EXIT_TERMINATED
    return result if isinstance(result, int) else 0


def _about_machine(error: Exception) -> str:
    """What a person can mend in an error that is this machine's; empty for any other."""
    if short_of_memory(error):
        first = (str(error).strip().splitlines() or ["no more can be had"])[0]
        return f"too little memory: {first}\n  {MORE_ROOM}"
    wanted, refused = os.environ.get(COMPILE_CACHE), getattr(error, "filename", None)
    if wanted and refused and Path(wanted).is_relative_to(str(refused)):
        return f"{COMPILE_CACHE}: {error}\n  Name a folder that can be made."
    return ""


def _left(stop: BaseException, argv: list[str] | None) -> str:
    """What is left after a signal: as the command noted it, or whether it can be resumed."""
    notes: list[str] = getattr(stop, "__notes__", [])
    if notes:
        return visible("; ".join(notes))
    words = sys.argv[1:] if argv is None else argv
    if words[:1] != ["calibrate"] or "--dry-run" in words:
        return "nothing is left half-written; the same command begins anew"
    if "--fresh" in words:
        return "the same command without --fresh goes on from here"
    return "the same command goes on from here"
