"""Errors for people: what is wrong, where, what to do next, and the exit code.

The command line prints `str(error)` and leaves with `error.exit_code`; nothing here is ever
shown as a traceback. Programming errors stay ordinary exceptions.
"""

EXIT_OK = 0  # done, or pass
EXIT_DIFFERS = 1  # output differed from plain decoding
EXIT_INPUT = 2  # usage or input error
EXIT_NO_EVIDENCE = 3  # nothing had enough evidence
EXIT_INTERRUPTED = 130  # Ctrl-C
EXIT_TERMINATED = 143  # SIGTERM


class SelfspecError(Exception):
    """Base of every error a user can cause or mend.

    Args:
        what: one sentence, what is wrong.
        where: file, line, option or field; empty if the sentence says it.
        hint: what to do next; empty if obvious.
    """

    exit_code = EXIT_INPUT

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        self.what, self.where, self.hint = what, where, hint
        super().__init__(what)

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f"\n  {self.hint}" if self.hint else ""
        return f"{place}{self.what}{advice}"


class ConfigError(SelfspecError):
    """A flag or a key of a config file cannot be used."""


class TraceError(SelfspecError):
    """A trace file cannot be read, or holds nothing usable."""


class ModelError(SelfspecError):
    """A model cannot be found, loaded or run."""


class FamilyError(ModelError):
    """The model's family is not in the table."""


class SelfCheckError(ModelError):
    """The layer-range view does not reproduce the model's own forward pass."""


class LossyRuleError(SelfspecError):
    """An acceptance rule that changes the output was asked for."""


class StorageError(SelfspecError):
    """An artefact is missing, torn or of another schema."""


class PlanError(SelfspecError):
    """A plan file cannot be read, or does not hold a plan."""


class RunDirError(SelfspecError):
    """The output folder cannot be used, or belongs to another measurement."""


class ComparisonError(SelfspecError):
    """Two runs cannot be compared; the message names the key that differs."""


class CostRangeError(SelfspecError):
    """A cost was asked for outside the measured range; costs are never extrapolated."""


class ExactnessError(SelfspecError):
    """Speculative output differed from plain decoding."""

    exit_code = EXIT_DIFFERS


def short_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, by the words of Python, PyTorch or a driver."""
    said = str(error).lower()
    return isinstance(error, MemoryError) or "allocate memory" in said or "out of memory" in said


class ShapeError(ValueError):
    """Array arguments disagree in shape; a programming error, not a user's."""
