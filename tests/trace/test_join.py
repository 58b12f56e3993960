"""Answers joined to requests: never to the wrong one."""

from selfspec_cli.records import Request
from selfspec_cli.trace.join import FoundAnswer, join_answers
from selfspec_cli.trace.rows import ReadAnswer


def asked(name: str, **fields: object) -> Request:
    return Request(request_id=name, task=None, prompt="x", source=f"in:{name}", **fields)


def found(name: str, text: str, line: int = 1, **message: object) -> FoundAnswer:
    choice = {"message": {"content": text, **message}}
    answer = ReadAnswer(custom_id=name, response={"choices": [choice]})
    return FoundAnswer(answer=answer, source=f"out:{line}")


def outcomes(requests: list[Request], answers: list[FoundAnswer]) -> list[str | None]:
    joined = join_answers(requests, answers)
    assert joined.num_joined == sum(skip is None for skip in joined.refusals)
    return [skip and skip.reason for skip in joined.refusals]


def test_each_answer_goes_to_its_request():
    joined = join_answers([asked("a"), asked("b")], [found("b", "bee"), found("a", "ay")])
    assert [one.completion for one in joined.requests] == ["ay", "bee"]


def test_ids_that_repeat_join_nothing():
    """Two batches often both begin at request-1; a twin that took the first would mix them."""
    assert outcomes([asked("a"), asked("a")], [found("a", "x")]) == ["custom_id is not unique"]
    twice = [found("a", "x"), found("a", "y", 2)]
    assert outcomes([asked("a")], twice) == ["custom_id is not unique"] * 2


def test_an_answer_never_replaces_one():
    assert outcomes([asked("a", completion="own")], [found("a", "x")]) == [
        "the request has an answer already"
    ]


def test_a_broken_answer_leaves_its_request():
    broken = FoundAnswer(
        answer=ReadAnswer(custom_id="a", response={"choices": [{}, {}]}), source="out:1"
    )
    joined = join_answers([asked("a")], [broken])
    assert [skip.reason for skip in joined.refusals] == ["n > 1"]
    assert joined.requests == (asked("a"),)


def test_remarks_of_answers_are_kept():
    joined = join_answers([asked("a")], [found("a", "x", reasoning_content="hm")])
    assert joined.requests[0].completion is None
    assert len(joined.remarks) == 1
