"""Tasks by rule: fields, patterns, files and system turns."""

import gzip
import re

import pytest

from selfspec_cli.errors import TraceError
from selfspec_cli.records import Request
from selfspec_cli.trace import read_traces, task_source
from selfspec_cli.trace.tasks import field_label, file_label, regex_label, system_label


def request(*turns: tuple[str, str], source: str = "t:1") -> Request:
    messages = tuple({"role": role, "content": text} for role, text in turns)
    return Request(request_id="r", task=None, messages=messages, source=source)


def labels(path, rule: str) -> list[str | None]:
    return [one.task for one in read_traces([path], task_source(rule)).requests]


@pytest.mark.parametrize(
    ("path", "label"),
    [
        ("route", "a/b"),
        ("metadata.route", "chat"),
        ("metadata.tier.name", "gold"),
        ("a.b", "dotted"),
        ("attributes.gen_ai.prompt.name", "vendor"),
        ("tags", "first"),
        ("tags.1", "second"),
        ("tags.7", None),
        ("number", "7"),
        ("flag", "true"),
        ("missing", None),
        ("metadata", None),
        ("route.more", None),
        ("empty", None),
    ],
)
def test_field_label_follows_dotted_paths(path, label):
    row = {
        "route": "a/b", "metadata": {"route": "chat", "tier": {"name": "gold"}}, "a.b": "dotted",
        "attributes": {"gen_ai.prompt.name": "vendor"}, "tags": ["first", "second"],
        "number": 7, "flag": True, "empty": "",
    }  # fmt: skip
    assert field_label(row, path) == label


@pytest.mark.parametrize(
    ("pattern", "label"),
    [
        (r"^(\w+):", "Translate"),
        (r"Translate", "Translate"),
        (r"(?i)OSLO", "Oslo"),
        (r"system (\w+)", "speaking"),
        (r"nothing", None),
        (r"(x)?Oslo", None),
    ],
)
def test_regex_label_is_the_first_group_or_the_whole_match(pattern, label):
    one = request(("user", "Translate: the road to Oslo"), ("system", "system speaking"))
    assert regex_label(re.compile(pattern), one) == label


@pytest.mark.parametrize(
    ("source", "label"),
    [
        ("logs/sales.2024.jsonl.gz:3", "sales.2024"),
        ("support.jsonl:12", "support"),
        ("C:/logs/night:1", "night"),
    ],
)
def test_file_label_is_the_stem(source, label):
    assert file_label(request(source=source)) == label


def test_system_label_is_stable_and_short():
    """The label stands in plans, so it must never change: this is the hash of `be brief`."""
    one = request(("system", "be brief"), ("user", "a"))
    assert system_label(one) == system_label(request(("developer", "be brief"), ("user", "b")))
    assert system_label(one) == "system-b0d336"
    assert system_label(request(("system", "be Brief"))) != system_label(one)
    assert system_label(request(("user", "a"))) == "no-system"
    assert system_label(request(("system", ""), ("user", "a"))) == "no-system"
    assert system_label(Request(request_id="p", task=None, prompt="x")) == "no-system"


def test_a_rule_replaces_labels_and_leaves_the_rest_without(write_rows):
    path = write_rows(
        {"prompt": "x", "task": "own", "metadata": {"route": "a"}},
        {"prompt": "y", "task": "own"},
    )
    assert labels(path, "metadata.route") == ["a", None]
    assert labels(path, "regex:x|y") == ["x", "y"]
    assert labels(path, "task") == ["own", "own"]


def test_fields_inside_wrappers_are_found_by_either_path(write_rows):
    body = {"prompt": "x", "metadata": {"route": "a"}, "user": "u"}
    path = write_rows({"request": body, "response": "out", "tier": "gold"})
    for rule, label in [
        ("request.metadata.route", "a"), ("metadata.route", "a"), ("user", "u"), ("tier", "gold"),
    ]:  # fmt: skip
        assert labels(path, rule) == [label], rule


def test_files_become_tasks(tmp_path):
    for name in ("code.jsonl", "talk.v2.jsonl.gz"):
        opener = gzip.open if name.endswith("gz") else open
        with opener(tmp_path / name, "wt") as file:
            file.write('{"prompt": "x"}\n')
    got = read_traces(sorted(tmp_path.iterdir()), task_source("file"))
    assert [one.task for one in got.requests] == ["code", "talk.v2"]


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("metadata.rout", "no row has a label in the field 'metadata.rout'.*metadata, prompt"),
        ("regex:zzz", "the pattern matched no prompt"),
    ],
)
def test_a_rule_that_finds_nothing_is_an_input_error(write_rows, rule, told):
    path = write_rows({"prompt": "x", "metadata": {"route": "a"}})
    with pytest.raises(TraceError, match=f"(?s){told}") as caught:
        labels(path, rule)
    assert caught.value.exit_code == 2
    assert "--task-from" in str(caught.value)


@pytest.mark.parametrize("rule", ["", "  ", "regex:(", "regex:["])
def test_rules_that_cannot_work_are_input_errors(rule):
    with pytest.raises(TraceError, match="--task-from"):
        task_source(rule)


def test_text_never_becomes_a_task_name():
    """`--task-from prompt`, or a pattern that takes all: prompts must not enter the plan."""
    prompt = "Dear support, my account " + "is locked " * 20
    for label in (
        field_label({"prompt": prompt}, "prompt"),
        field_label({"note": "one\ntwo"}, "note"),
        regex_label(re.compile("(?s).*"), request(("user", prompt))),
    ):
        assert re.fullmatch(r"text-[0-9a-f]{6}", label), label
    assert field_label({"route": "a" * 80}, "route") == "a" * 80
    other = field_label({"prompt": prompt + "!"}, "prompt")
    assert other != field_label({"prompt": prompt}, "prompt")
