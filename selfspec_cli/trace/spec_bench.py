"""Reader of Spec-Bench and MT-Bench questions: question_id, category, turns.

Only the first turn can be replayed: the later ones answer to a text that was not recorded. A
question is therefore one prompt, and repeats of it are grouped by that prompt, not by its number:
numbers repeat across question sets in different languages.

Source: hemingkx/Spec-Bench, data/spec_bench/question.jsonl.
"""

from pathlib import PurePath

from selfspec_cli.records import Request
from selfspec_cli.trace import parameters
from selfspec_cli.trace.rows import ReadRow, Row, RowRefusedError, label


def accepts(row: Row) -> bool:
    """Return whether a row is a question: it has `turns`, and none of our own prompt fields."""
    return "turns" in row and not row.keys() & {"prompt", "messages", "prompt_token_ids"}


def read(row: Row, source: str) -> ReadRow:
    """Return the first turn of a question as a request with one user message.

    Raises:
        RowRefusedError: `malformed turns` or an invalid parameter.
    """
    turns = row.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(t, str) for t in turns):
        raise RowRefusedError("malformed turns", "not a list of texts")
    parameters.refuse_unsupported(row)
    request = Request(
        request_id=label(row, ("question_id", "id")) or PurePath(source).name,
        task=label(row, ("category", "task")),
        messages=({"role": "user", "content": turns[0]},),
        temperature=parameters.read_temperature(row),
        sampling=parameters.read_sampling(row),
        max_tokens=parameters.read_max_tokens(row),
        stop=parameters.read_stop(row),
        source=source,
    )
    later = ("later user turns are left out (no recorded answer)",) if len(turns) > 1 else ()
    return ReadRow(request=request, remarks=later)
