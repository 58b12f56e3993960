"""The input cases that reading and preparing decide, on their own files (see CASES of each test).

Case ids stand in the names. The files are outside this repository; the tests skip without them.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from selfspec_cli.errors import TraceError
from selfspec_cli.trace import (
    Prepared,
    PrepareOptions,
    prepare,
    read_traces,
    sample_requests,
    summarise_skips,
)

VOCAB, CONTEXT = 264, 256  # of the tiny models the cases are written for


@pytest.fixture(scope="session")
def cases(shared: Path) -> Path:
    return shared / "cases" / "inputs"


@pytest.fixture(scope="session")
def case_tokenizer(cases: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(cases / "tokenizer")


@pytest.fixture
def run(cases: Path, case_tokenizer):
    """Read and prepare one case file, with one of its templates."""

    def prepare_case(name: str, template: str | None = None, **options: object) -> Prepared:
        text = template and (cases / "open" / "templates" / template).read_text(encoding="utf-8")
        read = read_traces([cases / "open" / name])
        got = prepare(
            read.requests,
            case_tokenizer,
            PrepareOptions(chat_template=text, vocab_size=VOCAB, **options),
        )
        return got

    return prepare_case


def read(cases: Path, name: str):
    return read_traces([cases / "open" / name])


def ids(got) -> list[str]:
    return [request.request_id for request in got.requests]


def reasons(got) -> list[tuple[str, str]]:
    return [(skip.reason, skip.source.rpartition(":")[2]) for skip in got.skips]


def test_c01_template_without_system_role_skips_two_and_runs_one(run):
    got = run("C_system_role.jsonl", "no_system.jinja")
    assert ids(got) == ["sys-1"]
    assert reasons(got) == [("chat template refused", "1"), ("chat template refused", "3")]
    assert {skip.detail for skip in got.skips} == {"this template takes no system turn"}


def test_c03_no_template_is_an_input_error_naming_the_way_out(run, cases, case_tokenizer):
    with pytest.raises(TraceError, match="--chat-template FILE") as caught:
        run("C_system_role.jsonl")
    assert caught.value.exit_code == 2
    both = read_traces([cases / "open" / n for n in ("C_system_role.jsonl", "control_10.jsonl")])
    got = prepare(both.requests, case_tokenizer, PrepareOptions())
    assert len(got.requests) == 10
    assert summarise_skips(got.skips)[0][:2] == ("no chat template", 3)


def test_c05_tool_arguments_render_alike_as_text_and_as_mapping(run, cases, case_tokenizer):
    got = run("C_tool_calls.jsonl", "tool_items.jinja")
    prompts = {one.request_id: one.prompt_token_ids for one in got.requests}
    assert list(prompts) == ["tool-str", "tool-dict", "tool-null"]
    assert prompts["tool-str"] == prompts["tool-dict"]
    assert "<call wx city=Oslo>" in case_tokenizer.decode(prompts["tool-str"])
    assert "<call ping>" in case_tokenizer.decode(prompts["tool-null"])
    assert reasons(read(cases, "C_tool_calls.jsonl")) == [("tool arguments are not a mapping", "4")]


def test_c07_one_bos_in_front_of_template_and_raw_prompt(run):
    got = run("C_double_bos.jsonl", "bos_inside.jinja")
    first, second = (one.prompt_token_ids for one in got.requests)
    assert first[:2] == (1, 62), first[:4]
    assert first == second, "the raw prompt is the rendered one"
    assert len(first) == 1 + len("[user]hello[assistant]"), "context counts one BOS"


def test_c09_prompts_past_the_position_table_are_skipped_before_any_model(run):
    got = run("C_too_long.jsonl", max_context=CONTEXT)
    lengths = [(one.request_id, one.prompt_tokens, one.max_tokens) for one in got.requests]
    assert lengths == [("len-200", 201, 16), ("len-255", 255, 1)]
    assert reasons(got) == [("over length", "3"), ("over length", "4")]


def test_c11_max_tokens_zero_negative_null_text_and_float(run, cases):
    got = run("C_max_tokens.jsonl")
    budgets = {one.request_id: one.max_tokens for one in got.requests}
    assert budgets == {"mt-0": 0, "mt-null": 128, "mt-float": 16, "mt-1": 1}
    skipped = reasons(read(cases, "C_max_tokens.jsonl"))
    assert skipped == [("invalid max_tokens", "2"), ("invalid max_tokens", "4")]


def test_c12_byte_order_mark_and_crlf(cases):
    assert ids(read(cases, "C_bom.jsonl")) == ["ok-00", "ok-01", "ok-02"]


def test_c14_compression_goes_by_content(cases, tmp_path):
    assert len(read(cases, "C_gzip_inside.jsonl").requests) == 3
    with pytest.raises(TraceError, match="compressed file is cut off"):
        read(cases, "C_truncated.jsonl.gz")
    plain = tmp_path / "plain.jsonl.gz"
    plain.write_bytes((cases / "open" / "control_10.jsonl").read_bytes())
    assert len(read_traces([plain]).requests) == 10


def test_c16_latin1_line_is_skipped_by_number(cases):
    got = read(cases, "C_latin1.jsonl")
    assert ids(got) == ["ok-00", "ok-01"]
    assert reasons(got) == [("not UTF-8", "2")]


def test_c17_mixed_schema_is_read_row_by_row(run, cases):
    got = read(cases, "C_mixed_schema.jsonl")
    assert ids(got) == ["m-0", "m-1", "m-2", "m-4", "m-6"]
    assert reasons(got) == [
        ("several prompts in one row", "4"),
        ("malformed", "7"),
        ("malformed", "8"),
    ]
    ready = {
        one.request_id: one for one in run("C_mixed_schema.jsonl", "bos_inside.jinja").requests
    }
    assert ready["m-4"].prompt_token_ids == (1, 40, 41, 42)
    assert (ready["m-1"].max_tokens, ready["m-1"].temperature) == (8, 0.2)


def test_c19_temperatures_that_are_none_are_skipped(cases):
    got = read(cases, "C_nan_temperature.jsonl")
    assert ids(got) == ["t-ok"]
    assert reasons(got) == [("invalid temperature", str(line)) for line in (1, 2, 3, 4)]


def test_c21_top_k_off_is_no_filter(cases):
    got = read(cases, "C_top_k.jsonl")
    assert [request.sampling.top_k for request in got.requests] == [0, 0, 1, 50, 100000]


def test_a34_a36_penalties_reach_the_law(cases):
    got = {r.request_id: r.sampling for r in read(cases, "A_penalties.jsonl").requests}
    assert got["rep-1.3"].repetition_penalty == 1.3
    assert got["rep-0.7"].repetition_penalty == 0.7
    assert got["min-tokens"].min_tokens == 8
    assert got["bad-words"].logit_bias == ((40, -100.0),)
    assert {sampling.law_class for sampling in got.values()} == {"penalised"}


def test_a40_rows_with_several_answers_are_skipped_by_reason(write_rows):
    got = read_traces([write_rows({"id": "one", "prompt": "x"}, {"prompt": "x", "n": 3})])
    assert (ids(got), reasons(got)) == (["one"], [("n > 1", "2")])


def test_a41_messages_without_template_are_skipped_not_a_crash(write_rows, make_tokenizer):
    turns = [{"role": "user", "content": "hi"}]
    got = read_traces([write_rows({"prompt": "x"}, {"messages": turns})])
    ready = prepare(got.requests, make_tokenizer(), PrepareOptions())
    assert reasons(ready) == [("no chat template", "2")]


def test_a43_ids_of_padded_rows_are_taken_and_ids_beyond_are_not(write_rows, make_tokenizer):
    got = read_traces([write_rows({"prompt": [263]}, {"prompt": [264]})])
    ready = prepare(got.requests, make_tokenizer(), PrepareOptions(vocab_size=VOCAB))
    assert [one.prompt_token_ids for one in ready.requests] == [(263,)]
    assert reasons(ready) == [("token id out of range", "2")]


def test_b09_empty_trace_is_an_input_error_never_invented_text(tmp_path):
    path = tmp_path / "empty.jsonl"
    path.write_bytes(b"")
    with pytest.raises(TraceError, match="empty"):
        read_traces([path])


def test_b11_one_token_rows_keep_their_budget(run):
    assert [one.max_tokens for one in run("D_gate_nan.jsonl").requests] == [1]


@pytest.mark.parametrize(
    ("name", "num"), [("D_path_labels.jsonl", 8), ("D_unicode_labels.jsonl", 7)]
)
def test_d03_d17_labels_stay_apart_and_exact(run, cases, name, num):
    rows = read(cases, name).requests
    got = run(name)
    assert len({one.task for one in got.requests}) == num
    assert [one.task for one in got.requests] == [row.task for row in rows]


def test_d01_ids_and_labels_are_not_touched(cases):
    got = read(cases, "D_xss.jsonl").requests
    assert got[0].task == "</script><script>document.title='owned'</script>"
    assert got[1].request_id == "<svg/onload=1>"


def test_real_traces_are_read_whole_and_sampled_over_tasks_and_bands(shared, case_tokenizer):
    got = read_traces([shared / "data" / "traces-real.jsonl"])
    assert (len(got.requests), len(got.skips)) == (897, 0)
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    ready = prepare(got.requests, case_tokenizer, PrepareOptions(chat_template=template))
    sample = sample_requests(ready.requests, 96, seed=0)
    assert (len(sample.requests), sample.num_left_out) == (96, 801)
    strata = {(c.task, c.context_min) for c in sample.strata if c.num_chosen}
    assert {task for task, _ in strata} == {request.task for request in got.requests}
    assert {0, 512, 2048, 8192} == {low for _, low in strata}


def test_spec_bench_is_read_whole(shared):
    got = read_traces([shared / "data" / "spec_bench" / "question.jsonl"])
    assert (len(got.requests), len(got.skips)) == (313, 0)
    assert got.notes == ("later user turns are left out (no recorded answer): 60",)
    assert got.files[0].formats == (("spec_bench", 313),)


READER_OF = {"openai_chat.jsonl": "jsonl", "openai_batch.jsonl": "openai_batch"}


@pytest.mark.parametrize("name", READER_OF)
def test_openai_shapes_are_read_whole(shared, name):
    got = read_traces([shared / "data" / "trace_shapes" / name])
    assert not got.skips
    assert all(request.messages for request in got.requests)
    assert [form for form, _ in got.files[0].formats] == [READER_OF[name]]


HEAVY = "import sys; import {module}; print(sorted({{'torch', 'transformers'}} & set(sys.modules)))"


@pytest.mark.parametrize(
    ("module", "loaded"), [("selfspec_cli.trace", "[]"), ("transformers", "['transformers'")]
)
def test_reading_traces_imports_no_torch(repo, module, loaded):
    """The second case is the broken twin: it shows that the check can see one."""
    done = subprocess.run(
        [sys.executable, "-c", HEAVY.format(module=module)],
        capture_output=True,
        text=True,
        cwd=repo,
        check=True,
    )
    assert done.stdout.startswith(loaded), done.stdout
