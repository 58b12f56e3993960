"""JUnit XML of a gate, for the test views of CI systems."""

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

from selfspec_cli.errors import ConfigError
from selfspec_cli.gate.verdict import Check, GateReport
from selfspec_cli.report.format import shown
from selfspec_cli.storage.files import read_bytes

_SUITE = "selfspec gate"


def check_place(file: Path) -> None:
    """Refuse, before anything is judged, a place that cannot hold the file or holds another one.

    Args:
        file: of `--junit`.

    Raises:
        ConfigError: a folder, a missing folder, or a file that is no XML.
    """
    where = f"--junit {file}"
    if not file.name or file.is_dir():
        raise ConfigError("is a folder, not a file", where=where, hint="Give a file: junit.xml")
    if not file.absolute().parent.is_dir():
        raise ConfigError("the folder does not exist", where=where, hint="Create it first.")
    if file.is_file() and not _is_xml(file):
        raise ConfigError(
            "exists and is no XML; it is left alone", where=where, hint="Give another --junit."
        )


def _is_xml(file: Path) -> bool:
    start = read_bytes(file)[:64].lstrip()
    return not start or start.startswith(b"<?xml")


def junit_xml(report: GateReport) -> bytes:
    r"""Return one test suite with one test case a check, in UTF-8.

    A check that fails the gate is a `failure`. One without a verdict is `skipped`: the gate still
    leaves with code 3 if a verdict was needed, which a test view alone does not show. A failure
    that only warns is a passed case whose `system-out` says so. Characters that cannot be printed
    are written as escapes such as `\x1b`: XML knows no control characters.

    Source: the schema that Jenkins' xunit plugin publishes (testsuites, testsuite, testcase).
    """
    checks = report.checks
    numbers = {
        "tests": str(len(checks)),
        "failures": str(sum(check.fails for check in checks)),
        "errors": "0",
        "skipped": str(sum(check.outcome == "no_verdict" for check in checks)),
    }
    root = ElementTree.Element("testsuites", {"name": _SUITE, **numbers})
    suite = ElementTree.SubElement(root, "testsuite", {"name": _SUITE, **numbers})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in (("run", report.run), ("outcome", report.outcome)):
        ElementTree.SubElement(properties, "property", {"name": name, "value": shown(value)})
    seen: Counter[str] = Counter()
    for check in checks:
        _add_case(suite, check, _unique(_label(check), seen))
    if report.notes:
        notes = "\n".join(shown(note) for note in report.notes)
        ElementTree.SubElement(suite, "system-out").text = notes
    text: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return text


def _label(check: Check) -> str:
    name = shown(check.name)
    return f"{name} [{shown(check.subject)}]" if check.subject else name


def _unique(label: str, seen: Counter[str]) -> str:
    """Test views join cases of one name: the second of a name gets a number."""
    seen[label] += 1
    return label if seen[label] == 1 else f"{label} #{seen[label]}"


def _add_case(suite: ElementTree.Element, check: Check, label: str) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", {"classname": f"selfspec.gate.{shown(check.name)}", "name": label}
    )
    text = shown(check.text)
    advice = shown(check.next_step)
    if check.fails:
        failure = ElementTree.SubElement(case, "failure", {"message": text, "type": "failed"})
        failure.text = "\n".join(part for part in (text, advice) if part)
    elif check.outcome == "no_verdict":
        ElementTree.SubElement(
            case, "skipped", {"message": ". ".join(filter(None, (text, advice)))}
        )
    else:
        said = f"warning: {text}" if check.warns else text
        ElementTree.SubElement(case, "system-out").text = said
