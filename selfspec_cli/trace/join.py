"""Answers of batch output files, joined to the requests of batch input files by `custom_id`.

The order of a batch's output is not promised, and the two files may be given in any order. Where
an id is not unique on either side, no answer is joined by it: a wrong pair would be worse.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from selfspec_cli.records import Request, Skip
from selfspec_cli.trace.answers import read_response
from selfspec_cli.trace.rows import ReadAnswer, RowRefusedError


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAnswer:
    """An answer as read, and where."""

    answer: ReadAnswer
    source: str
    """`file:line`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Requests with their answers."""

    requests: tuple[Request, ...]
    refusals: tuple[Skip | None, ...]
    """For each answer why it was left over, None where it was joined."""
    remarks: tuple[str, ...]

    @property
    def num_joined(self) -> int:
        """How many answers found their request."""
        return self.refusals.count(None)


def join_answers(requests: Sequence[Request], answers: Sequence[FoundAnswer]) -> Joined:
    """Return the requests with the answers that belong to them, and the answers left over.

    Args:
        requests: with ids as read, before they are made unique.
        answers: of batch output lines.
    """
    places = {request.request_id: index for index, request in enumerate(requests)}
    num_requests = Counter(request.request_id for request in requests)
    num_answers = Counter(found.answer.custom_id for found in answers)
    joined, remarks = list(requests), list[str]()
    refusals: list[Skip | None] = []
    for found in answers:
        name = found.answer.custom_id
        try:
            _refuse_ambiguous(num_requests[name], num_answers[name])
            index = places[name]
            joined[index], notes = _with_answer(joined[index], found.answer)
            remarks.extend(notes)
            refusals.append(None)
        except RowRefusedError as refusal:
            skip = Skip(reason=refusal.reason, source=found.source, detail=refusal.detail)
            refusals.append(skip)
    return Joined(requests=tuple(joined), refusals=tuple(refusals), remarks=tuple(remarks))


def _refuse_ambiguous(num_requests: int, num_answers: int) -> None:
    if num_requests == 0:
        raise RowRefusedError("answer without its request", "give the batch input file too")
    if num_requests > 1 or num_answers > 1:
        detail = f"{num_requests} requests, {num_answers} answers"
        raise RowRefusedError("custom_id is not unique", detail)


def _with_answer(request: Request, found: ReadAnswer) -> tuple[Request, tuple[str, ...]]:
    if request.completion is not None or request.completion_token_ids is not None:
        raise RowRefusedError("the request has an answer already")
    answer = read_response(found.response, has_stop=bool(request.stop))
    request = replace(
        request,
        completion=answer.text,
        completion_token_ids=answer.token_ids,
        finish=answer.finish,
        logged_completion_tokens=answer.num_tokens,
    )
    return request, answer.remarks
