"""`selfspec bench RUN|PLAN -t TRACES` on tiny models: every arm decoded for real."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from bench_helpers import OWN, RIVALS, TOKENS, bench, document, of_model, rows, switched_on
from checkpoints import byte_tokenizer, random_model, run_cli, save_checkpoint

from selfspec_cli.bench.measure import COLUMNS
from selfspec_cli.engine.decoder import Decoder


@pytest.fixture(scope="module")
def run(calibrated_run: Path, model: Path, trace: Path) -> Path:
    """Calibrated and benched: nothing pays, the plan is off everywhere."""
    flags = ("--requests", 3, "--repeats", 2, "--batch-size", "1,2", "--price-per-hour", 2.5)
    assert bench(calibrated_run, model, trace, *flags) == 0
    return calibrated_run


@pytest.fixture(scope="module")
def on(folder: Path, run: Path, model: Path, trace: Path) -> pd.DataFrame:
    """Rows of a plan that is on with (2, 2) everywhere at batch 1."""
    plan = switched_on(run, folder / "on.yaml", (2, 2))
    flags = ("-o", folder / "on", "--batch-size", "1,2", "--requests", 4)
    assert bench(plan, model, trace, *flags) == 0
    return rows(folder / "on")


def test_every_arm_of_every_request_has_one_row_a_repeat(run: Path):
    table = rows(run)
    assert tuple(table.columns) == COLUMNS
    alone = table[table["batch_size"] == 1]
    keys = ["task", "temperature", "request_id", "repeat"]
    for key, own in alone.groupby(keys):
        wanted = {*OWN, *(RIVALS if key[1] == 0 else ())}
        assert sorted(own["arm"]) == sorted(wanted), f"{key} has arms {list(own['arm'])}"
    sizes = alone.groupby(["task", "temperature", "arm"]).size()
    # 2 tasks; 3 requests, 2 repeats
    assert set(sizes) == {6}, f"rows by bucket and arm: {sizes.to_dict()}"
    together = table[table["batch_size"] == 2]
    assert together["request_id"].isna().all(), "no request's own time is known in a batch"
    assert len(together) == 2 * 2 * 3 * 2, f"{len(together)} rows of whole batches"


def test_arms_are_interleaved_in_an_order_that_differs_between_requests(run: Path):
    table = rows(run)
    greedy = table[(table["batch_size"] == 1) & (table["temperature"] == 0)]
    assert set(greedy.loc[greedy["arm"] == "ar", "order"]) == {0}
    orders = set()
    for _, own in greedy.groupby(["request_id", "repeat"]):
        arms = tuple(own.sort_values("order")["arm"])
        assert sorted(own["order"]) == list(range(6)), f"places {sorted(own['order'])}"
        orders.add(arms)
    # 12 shuffles of 5 arms; all alike by chance: 120 ** -11
    assert len(orders) > 1, f"12 requests and repeats all in the order {orders}"


def test_greedy_output_is_checked_and_sampled_output_is_not(run: Path):
    table = rows(run)
    judged = table[table["arm"].isin(("plan", "forced"))]
    greedy = judged["temperature"] == 0
    assert judged.loc[greedy, "exact"].eq(True).all(), "a greedy decode was not plain decoding's"
    assert judged.loc[~greedy, "exact"].isna().all()
    assert table.loc[~table["arm"].isin(("plan", "forced")), "exact"].isna().all()
    assert document(run)["differences"] == []


def test_a_plan_that_is_off_does_plain_work(run: Path):
    table = rows(run)
    table["request_id"] = table["request_id"].fillna("")
    keys = ["task", "temperature", "batch_size", "request_id", "repeat"]
    plan = table[table["arm"] == "plan"].set_index(keys).sort_index()
    plain = table[table["arm"] == "ar"].set_index(keys).sort_index()
    assert (plan["committed"] == plain["committed"]).all(), "not the tokens of plain decoding"
    for name in ("exit_layer", "draft_length", "rounds", "drafted", "rounds_by_accepted"):
        assert plan[name].isna().all(), f"{name} of an arm that drafts nothing: {set(plan[name])}"
    forced = table[table["arm"] == "forced"]
    assert forced["rounds"].gt(0).all(), "forced on, and no rounds were decoded"


def test_a_plan_that_is_on_is_obeyed_up_to_its_batch_size(on: pd.DataFrame):
    plan = on[on["arm"] == "plan"]
    alone, together = plan[plan["batch_size"] == 1], plan[plan["batch_size"] == 2]
    assert set(zip(alone["exit_layer"], alone["draft_length"], strict=True)) == {(2, 2)}
    assert together["exit_layer"].isna().all(), "the rule holds up to batch 1 only"
    forced = on[(on["arm"] == "forced") & (on["batch_size"] == 2)]
    assert len(forced)
    assert set(forced["exit_layer"]) == {2}


def test_the_histogram_adds_up_to_the_rounds_counts(on: pd.DataFrame):
    forced = on[on["arm"].isin(("plan", "forced")) & on["rounds"].notna()]
    assert len(forced) > 20
    for row in forced.to_dict("records"):
        counts = [int(part) for part in row["rounds_by_accepted"].split()]
        assert len(counts) == 3, f"k = 2 has 3 outcomes, not {counts}"
        accepted = sum(n * count for n, count in enumerate(counts))
        assert accepted == row["accepted"], f"{counts} against {row['accepted']} accepted"
        assert sum(counts) <= row["rounds"]
        assert row["committed"] <= row["accepted"] + row["rounds"]


def test_times_of_a_row_belong_together(run: Path):
    table = rows(run)
    parts = table["prefill_seconds"] + table["seconds"]
    assert parts.to_numpy() == pytest.approx(table["request_seconds"].to_numpy())
    alone = table[(table["batch_size"] == 1) & (table["committed"] > 1)]
    assert (alone["gap_max_s"] >= alone["gap_p50_s"]).all()
    assert (alone["gap_max_s"] <= alone["seconds"] * 1.5).all(), "a gap longer than its decode"
    assert table.loc[table["batch_size"] == 2, "gap_max_s"].isna().all()


def test_memory_is_the_weights_and_the_cache(run: Path):
    table = rows(run)
    row = table[(table["arm"] == "ar") & (table["batch_size"] == 1)].iloc[0]
    weights = sum(p.numel() for p in random_model("llama").parameters()) * 4
    # 4 layers, keys and values, 1 head of 8, float32
    cache = (row["prompt_tokens"] + TOKENS) * 4 * 2 * 8 * 4
    assert row["peak_memory_bytes"] == weights + cache
    assert table.loc[table["engine"] == "transformers", "peak_memory_bytes"].isna().all()


def test_the_document_says_whose_numbers_these_are(run: Path):
    told = document(run)
    assert told["price_per_hour"] == 2.5
    assert told["provenance"]["model"]["name"] == "llama"
    assert [told["seed"], told["batch_sizes"], told["repeats"]] == [0, [1, 2], 2]
    assert len(told["plan"]["sha256"]) == len(told["traces"]) == 64


def test_json_is_one_document_with_the_answer(run, model, trace, tmp_path, capsys):
    capsys.readouterr()
    flags = ("-o", tmp_path, "--requests", 1, "--budget-s", "1e-9", "--json")
    assert bench(run, model, trace, *flags) == 0
    shown, told = capsys.readouterr()
    assert told == "", f"--quiet said {told!r}"
    found = json.loads(shown, parse_constant=lambda name: pytest.fail(f"{name} in JSON"))
    assert found["num_requests"] == 1
    assert found["answer"].startswith("plan "), found["answer"]
    page = (tmp_path / "bench.html").read_text(encoding="utf-8")
    assert str(tmp_path / "bench.html") in found["files"]
    assert found["answer"].partition(";")[0][:12] in page, "the page does not say the answer"
    assert found["summary"] == document(tmp_path)["summary"], "bench.json has other numbers"
    arms = [line["arm"] for line in found["summary"]["lines"]]
    assert {*OWN} <= {*arms}, f"lines of {arms} only"


def off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken twin: a round leaves the slot of a rejected draft in the cache."""
    real = Decoder.round

    def short(self, exit_layer, draft_length):
        made = real(self, exit_layer, draft_length)
        if made.num_accepted < made.num_drafted:
            self.cache.lengths = [[n + 1 for n in own] for own in self.cache.lengths]
        return made

    monkeypatch.setattr(Decoder, "round", short)
    monkeypatch.setattr(Decoder, "_roll_back", _to)


def _to(state: Decoder) -> None:
    held = len(state.job.prompt) + len(state.output) - 1
    state.cache.lengths = [[held] for _ in state.cache.lengths]


def test_a_wrong_rollback_ends_with_code_1_and_all_rows(
    run, model, trace, tmp_path, monkeypatch, capsys
):
    with monkeypatch.context() as patch:
        off_by_one(patch)
        assert bench(run, model, trace, "-o", tmp_path / "bench", "--requests", 2) == 1
    shown = capsys.readouterr()
    said = shown.err
    assert "DIFFERS from plain decoding in" in " ".join(shown.out.split()), shown.out
    assert "greedy decodes differ from plain decoding" in said
    assert "of arm forced" in said
    table, told = rows(tmp_path / "bench"), document(tmp_path / "bench")
    wrong = table[(table["arm"] == "forced") & (table["temperature"] == 0)]["exact"].eq(False)
    assert wrong.sum() == len(told["differences"]) > 0
    assert not any(one["is_tie"] for one in told["differences"])
    plan = table[(table["arm"] == "plan") & (table["temperature"] == 0)]
    assert plan["exact"].eq(True).all(), "plain decoding does not roll back, and was blamed"


@pytest.mark.parametrize("key", ["model.revision", "model.tokenizer_hash"])
def test_another_model_is_refused_by_name_of_the_key(run, model, trace, tmp_path, capsys, key):
    if key == "model.revision":
        other = save_checkpoint(random_model("llama", seed=2), tmp_path / "other")
    else:
        other = Path(shutil.copytree(model, tmp_path / "other"))
        byte_tokenizer("{% for m in messages %}{{ m.content }}{% endfor %}").save_pretrained(other)
    assert bench(run, other, trace, "-o", tmp_path / "bench") == 2
    said = capsys.readouterr().err
    assert f"plan.yaml: {key}: the plan is of another model" in said, said
    assert not (tmp_path / "bench").exists()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("RUN",), "-t: no traces are given"),
        (("-t", "sample"), "no run or plan is given"),
        (("nowhere", "-t", "sample"), "nowhere: no such run or plan"),
        (("RUN", "-t", "sample", "--price-per-hour", "nan"), "--price-per-hour: nan"),
        (("RUN", "-t", "sample", "--price-per-hour", "0"), "--price-per-hour: 0"),
        (("RUN", "-t", "sample", "--budget-s", "inf"), "--budget-s: inf"),
        (("RUN", "-t", "sample", "--batch-size", "0"), "--batch-size"),
        (("RUN", "-t", "sample", "-o", "no/such/place"), "parent folder"),
        (("PLAN", "-t", "sample"), "-m: a plan alone names no model"),
        (("PLAN", "-t", "sample", "-m", "MODEL"), "-o: a plan alone has no run"),
    ],
)
def test_what_cannot_be_benched_is_said_with_exit_code_2(
    run, model, tmp_path, capsys, words, named
):
    plan = shutil.copy(run / "plan.yaml", tmp_path / "alone.yaml")
    places = {"RUN": run, "PLAN": plan, "MODEL": model}
    assert run_cli("bench", *(places.get(word, word) for word in words)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert named in said.err, said.err


def test_a_small_budget_keeps_one_request_and_says_how_many_it_left_out(
    run, model, trace, tmp_path
):
    assert bench(run, model, trace, "-o", tmp_path, "--budget-s", "1e-9", "--requests", 2) == 0
    table, told = rows(tmp_path), document(tmp_path)
    assert len(set(table["request_id"])) == 1
    # 2 tasks, 2 temperatures, 2 requests each
    assert [told["num_requests"], told["num_left_out"]] == [1, 7]
    assert any("7 of 8 requests are left out: the budget of 1e-09 s" in n for n in told["notes"])


def test_a_batch_that_too_few_requests_fill_is_noted(run, model, trace, tmp_path):
    assert bench(run, model, trace, "-o", tmp_path, "--requests", 1, "--batch-size", "1,2") == 0
    assert set(rows(tmp_path)["batch_size"]) == {1}
    few = [note for note in document(tmp_path)["notes"] if "do not fill a batch of 2" in note]
    assert len(few) == 4, f"4 buckets of one request each, {len(few)} notes"


def test_an_early_exit_that_the_library_lacks_is_left_out_and_said_once(
    run, tiny_checkpoint, trace, tmp_path
):
    plan = of_model(run, tmp_path / "plan.yaml", tiny_checkpoint)
    assert bench(plan, tiny_checkpoint, trace, "-o", tmp_path, "--requests", 2) == 0
    table, told = rows(tmp_path), document(tmp_path)
    assert "early_exit_hf" not in set(table["arm"])
    assert {"generate", "prompt_lookup"} <= set(table["arm"])
    notes = [note for note in told["notes"] if note.startswith("early_exit_hf is left out")]
    assert len(notes) == 1, f"notes {told['notes']}"
    # The library leaves a model's depth cut where its early exit fails; ours must be whole.
    plain = table[(table["arm"] == "generate") & (table["temperature"] == 0)]["committed"]
    ours = table[(table["arm"] == "ar") & (table["temperature"] == 0)]["committed"]
    assert list(plain) == list(ours), f"{list(plain)} tokens by the library, {list(ours)} by us"
