"""Prepared requests: budgets, lengths, recorded paths, groups, hashes, notes."""

from dataclasses import replace

import pytest

from selfspec_cli.errors import TraceError
from selfspec_cli.records import Request, Sampling
from selfspec_cli.trace import PrepareOptions, prepare

BOS, EOS = 0, 1
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"


def request(prompt: str = "hi", **fields: object) -> Request:
    fields = {"request_id": "r", "task": "chat", "source": "t:1"} | fields
    return Request(prompt=prompt, **fields)


def chat(content: str = "hi") -> Request:
    message = {"role": "user", "content": content}
    return Request(request_id="c", task="chat", messages=(message,), source="t:2")


@pytest.fixture
def prepare_one(make_tokenizer):
    def run(one: Request, **options: object):
        return prepare([one], make_tokenizer(), PrepareOptions(**options)).requests[0]

    return run


@pytest.fixture
def refusal(make_tokenizer):
    """Return the skip of one request; a good one beside it keeps the trace usable."""

    def run(one: Request, **options: object):
        got = prepare([one, request()], make_tokenizer(), PrepareOptions(**options))
        assert len(got.requests) == 1, f"{len(got.requests)} requests ran"
        return got.skips[0]

    return run


@pytest.mark.parametrize(
    ("max_tokens", "cap", "expected"),
    [(None, None, 128), (None, 16, 16), (5, None, 5), (5, 3, 3), (5, 9, 5), (0, None, 0)],
)
def test_budget_after_default_and_cap(prepare_one, max_tokens, cap, expected):
    got = prepare_one(request(max_tokens=max_tokens), max_tokens_cap=cap)
    assert got.max_tokens == expected


@pytest.mark.parametrize(("letters", "budget", "runs"), [(200, 16, 1), (254, 1, 1), (254, 2, 0)])
def test_prompt_and_budget_must_fit_the_context(make_tokenizer, letters, budget, runs):
    rows = [request("a" * letters, max_tokens=budget), request("short", max_tokens=1)]
    got = prepare(rows, make_tokenizer(), PrepareOptions(max_context=256))
    assert len(got.requests) == 1 + runs, f"{letters} + BOS + {budget} against 256"
    assert [skip.reason for skip in got.skips] == ["over length"] * (1 - runs)


def test_over_length_skip_says_the_numbers(refusal):
    skip = refusal(request("a" * 250, max_tokens=16), max_context=256, default_max_tokens=1)
    assert skip.detail == "251 prompt + 16 output tokens against 256 positions"
    assert skip.source == "t:1"


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": None, "prompt_token_ids": (5, 264)},
        {"completion_token_ids": (5, 300)},
        {"sampling": Sampling(logit_bias=((264, 1.0),))},
    ],
)
def test_token_ids_beyond_the_vocabulary_are_skipped(refusal, fields):
    skip = refusal(replace(request(), **fields), vocab_size=264)
    assert skip.reason == "token id out of range"


def test_token_ids_of_padded_vocabulary_rows_are_taken(prepare_one):
    """Models often have more rows than the tokenizer has tokens; 261 is such a row here."""
    one = replace(request(), prompt=None, prompt_token_ids=(5, 261))
    assert prepare_one(one, vocab_size=264).prompt_token_ids == (5, 261)


@pytest.mark.parametrize(
    ("fields", "ids", "finish"),
    [
        ({"completion_token_ids": (9, 8), "finish": "length"}, (9, 8), "length"),
        ({"completion_token_ids": (9, 8), "finish": "unknown"}, (9, 8), "unknown"),
        ({"completion_token_ids": (9, 8), "finish": "stop"}, (9, 8, EOS), "eos"),
        ({"completion_token_ids": (9, 8), "finish": "eos"}, (9, 8, EOS), "eos"),
        ({"completion_token_ids": (9, EOS), "finish": "stop"}, (9, EOS), "eos"),
        ({"completion_token_ids": (9, 8), "finish": "stop", "stop": (".",)}, (9, 8), "stop"),
        ({"completion_token_ids": (9, 8), "finish": "eos", "stop": (".",)}, (9, 8, EOS), "eos"),
        ({"completion_token_ids": (9, EOS, 7), "finish": "length"}, (9, EOS), "eos"),
        ({"completion_token_ids": (9, 8, 7), "max_tokens": 2, "finish": "stop"}, (9, 8), "length"),
        ({"completion_token_ids": (9, 8), "max_tokens": 2, "finish": "stop"}, (9, 8), "length"),
        ({"completion_token_ids": (), "finish": "stop"}, (EOS,), "eos"),
        ({"completion_token_ids": (9,), "max_tokens": 0}, (), "length"),
        ({"completion": "", "finish": "length"}, (), "length"),
        ({}, None, "unknown"),
    ],
)
def test_recorded_path_ends_where_the_answer_ended(prepare_one, fields, ids, finish):
    got = prepare_one(request(**fields))
    assert (got.completion_token_ids, got.finish) == (ids, finish)


def test_recorded_text_gets_no_bos(prepare_one, make_tokenizer):
    plain = make_tokenizer().encode("out", add_special_tokens=False)
    assert prepare_one(request(completion="out")).completion_token_ids == tuple(plain)


def test_recorded_path_ends_with_the_tokenizers_eos_where_the_model_has_several(prepare_one):
    one = request(completion_token_ids=(9, 8), finish="stop")
    assert prepare_one(one, eos_token_ids=(3, EOS)).completion_token_ids == (9, 8, EOS)
    assert prepare_one(one, eos_token_ids=(3, 2)).completion_token_ids == (9, 8, 3)
    cut = request(completion_token_ids=(9, 3, 7), finish="length")
    assert prepare_one(cut, eos_token_ids=(3, EOS)).completion_token_ids == (9, 3)


def test_repeats_of_a_prompt_share_a_group_unless_the_trace_names_one(make_tokenizer):
    rows = [
        request("a", temperature=0.0, sampling=Sampling(temperature=0.0)),
        request("a", temperature=0.7, sampling=Sampling(temperature=0.7)),
        request("b"),
        request("b", group_id="talk"),
    ]
    groups = [p.group_id for p in prepare(rows, make_tokenizer(), PrepareOptions()).requests]
    assert groups[0] == groups[1]
    assert len(set(groups)) == 3, groups
    assert groups[3] == "talk"


def test_content_hash_follows_prompt_and_sampling_only(prepare_one):
    base = prepare_one(request())
    assert base.content_hash == prepare_one(request(request_id="s", task="x")).content_hash
    changed = [
        request("ho"),
        request(sampling=Sampling(top_p=0.9)),
        request(temperature=1.0),
    ]
    hashes = {base.content_hash, *(prepare_one(one).content_hash for one in changed)}
    assert len(hashes) == 4, hashes


def test_missing_task_is_unlabelled_and_labels_stay_exact(prepare_one):
    assert prepare_one(request(task=None)).task == "unlabelled"
    assert prepare_one(request(task="\x1b[31m../A")).task == "\x1b[31m../A"


def test_counts_add_up_and_notes_carry_numbers(make_tokenizer):
    rows = [
        request(max_tokens=0, temperature=0.0),
        request(completion="out", finish="stop"),
        request(completion="out", completion_token_ids=(9, 9), finish="length", max_tokens=500),
        request(""),
    ]
    got = prepare(rows, make_tokenizer(), PrepareOptions(max_tokens_cap=300))
    counts = {name: count for name, count in got.counts.items() if count}
    assert counts == {
        "read": 4,
        "prepared": 3,
        "skipped": 1,
        "max_tokens_defaulted": 1,
        "max_tokens_capped": 1,
        "temperature_missing": 2,
        "zero_budget": 1,
        "eos_appended": 1,
        "reencoding_differs": 1,
    }
    assert "no max_tokens in the trace, 128 was used: 1" in got.notes
    assert "max_tokens was cut to 300: 1" in got.notes


def test_a_recorded_text_that_matches_its_ids_is_no_difference(make_tokenizer):
    tokenizer = make_tokenizer()
    ids = tuple(tokenizer.encode("out", add_special_tokens=False))
    rows = [request(completion="out", completion_token_ids=given) for given in (ids, (*ids, EOS))]
    assert prepare(rows, tokenizer, PrepareOptions()).counts["reencoding_differs"] == 0


@pytest.mark.parametrize(
    ("finish", "logged", "differs"),
    [
        ("stop", 3, 0), ("stop", 4, 0), ("stop", 5, 1), ("stop", 2, 1), ("unknown", 4, 0),
        ("length", 3, 0), ("length", 4, 1), ("length", 2, 1), ("length", 0, 1),
    ],
)  # fmt: skip
def test_logged_counts_that_reencoding_does_not_give_are_counted(
    make_tokenizer, finish, logged, differs
):
    """`out` is 3 byte tokens here; a server may count the token that ended the answer or not."""
    one = request(completion="out", finish=finish, logged_completion_tokens=logged)
    got = prepare([one, request(completion="out")], make_tokenizer(), PrepareOptions())
    assert (got.counts["recounted"], got.counts["recount_differs"]) == (1, differs)
    told = "recorded text re-encodes to another number of tokens than was logged, of 1 compared: 1"
    assert (told in got.notes) is bool(differs), got.notes


def test_exact_ids_are_not_recounted(make_tokenizer):
    one = request(completion="out", completion_token_ids=(9,), logged_completion_tokens=1)
    got = prepare([one], make_tokenizer(), PrepareOptions())
    assert (got.counts["recounted"], got.counts["recount_differs"]) == (0, 0)


@pytest.mark.parametrize(("labels", "note"), [
    ([None, None], "one bucket: no task labels found, use --task-from"),
    (["a", None], "no task label, all of these share the bucket unlabelled: 1"),
    (["a", "b"], None),
])  # fmt: skip
def test_note_on_missing_labels(make_tokenizer, labels, note):
    rows = [request(task=label, max_tokens=4, temperature=0.0) for label in labels]
    got = prepare(rows, make_tokenizer(), PrepareOptions())
    assert got.notes == ((note,) if note else ())


def test_features_known_at_request_time_are_kept(prepare_one):
    one = prepare_one(request("大海", max_tokens=500), max_tokens_cap=8)
    assert (one.script, one.stated_max_tokens, one.max_tokens) == ("han", 500, 8)
    ids = prepare_one(replace(request(), prompt=None, prompt_token_ids=(5, 6)))
    assert (ids.script, ids.stated_max_tokens, ids.max_tokens) == (None, None, 128)


def test_no_template_skips_chats_and_runs_prompts(make_tokenizer):
    got = prepare([chat(), request()], make_tokenizer(), PrepareOptions())
    assert [one.request_id for one in got.requests] == ["r"]
    assert [skip.reason for skip in got.skips] == ["no chat template"]


def test_no_template_and_only_chats_is_an_input_error_with_a_way_out(make_tokenizer):
    with pytest.raises(TraceError) as caught:
        prepare([chat(), chat("ho")], make_tokenizer(), PrepareOptions())
    assert "--chat-template FILE" in str(caught.value)
    got = prepare([chat()], make_tokenizer(), PrepareOptions(chat_template=PLAIN))
    assert len(got.requests) == 1


def test_empty_template_file_is_an_input_error(make_tokenizer):
    with pytest.raises(TraceError, match="empty"):
        prepare([request()], make_tokenizer(PLAIN), PrepareOptions(chat_template=" \n"))


def test_nothing_usable_is_an_input_error_that_lists_reasons(make_tokenizer):
    template = "{{ raise_exception('takes no chats') }}"
    with pytest.raises(TraceError) as caught:
        prepare([chat(), request("")], make_tokenizer(template), PrepareOptions())
    assert "1 x chat template refused (t:2); 1 x empty prompt (t:1)" in caught.value.what
    assert caught.value.hint == "takes no chats"
