"""What a gate found: checks, each with number, limit, interval and next step, and the exit code."""

from dataclasses import dataclass
from typing import Literal

from selfspec_cli.errors import EXIT_DIFFERS, EXIT_NO_EVIDENCE, EXIT_OK

Outcome = Literal["pass", "fail", "no_verdict"]
EXIT_FAILED = EXIT_DIFFERS


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One rule held against one subject."""

    name: str
    """Key of the rule, as in the YAML file."""
    outcome: Outcome
    subject: str = ""
    """Label of the bucket; empty where the whole run is meant."""
    value: float | None = None
    """The number that was judged; None where there is none."""
    low: float | None = None
    high: float | None = None
    limit: float | None = None
    text: str
    """One sentence with the numbers."""
    next_step: str = ""
    """What to do about it; empty where it passed."""
    warns_only: bool = False
    """A failure is shown and does not fail the gate."""
    optional: bool = False
    """No verdict is shown and does not end the gate without a verdict."""
    timing: bool = False
    """Rests on timings, which are judged on the plan's own hardware only."""

    @property
    def fails(self) -> bool:
        """Whether it fails the gate."""
        return self.outcome == "fail" and not self.warns_only

    @property
    def warns(self) -> bool:
        """Whether it failed without failing the gate."""
        return self.outcome == "fail" and self.warns_only

    @property
    def undecided(self) -> bool:
        """Whether it leaves the gate without a verdict."""
        return self.outcome == "no_verdict" and not self.optional


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """All checks of a run."""

    run: str
    """Path of the run, as given."""
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Failed if any check fails; without a passed check there is no verdict."""
        if any(check.fails for check in self.checks):
            return "fail"
        undecided = any(check.undecided for check in self.checks)
        passed = any(check.outcome == "pass" for check in self.checks)
        return "pass" if passed and not undecided else "no_verdict"

    @property
    def exit_code(self) -> int:
        """0 pass, 1 failed, 3 no verdict."""
        codes = {"pass": EXIT_OK, "fail": EXIT_FAILED, "no_verdict": EXIT_NO_EVIDENCE}
        return codes[self.outcome]
