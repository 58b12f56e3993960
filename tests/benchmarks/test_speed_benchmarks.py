"""The speed benchmarks measure what they say and print what they write."""

import itertools
import json
import sys
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import early_exit_rival
import growth
import overhead
import peers
import step_speed
from checkpoints import random_model, save_checkpoint
from peers import Run
from speed_tables import about, early_exit_table, growth_table, overhead_table, step_speed_table


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """Folder of a random model of four layers."""
    return save_checkpoint(random_model("llama"), tmp_path_factory.mktemp("llama") / "model")


def run(main, *arguments, out: Path, capsys) -> tuple[dict, str]:
    """Run a script's main; its document and its table."""
    main([*map(str, arguments), "--quick", "--json", str(out)])
    return json.loads(out.read_text(encoding="utf-8")), capsys.readouterr().out


def test_pairs_see_through_a_machine_that_slows_down():
    """True ratio 2; the machine halves its speed in the middle of a pair. Medians of each side,
    the broken twin, would say 2.67."""
    one = [Run(seconds=s, tokens=()) for s in (1.0, 1.0, 1.5, 2.0, 2.0)]
    two = [Run(seconds=s, tokens=()) for s in (2.0, 2.0, 4.0, 4.0, 4.0)]
    ratio = peers.pair_ratio(two, one)
    assert ratio["median"] == 2.0, ratio
    unpaired = peers.milliseconds(two)["median"] / peers.milliseconds(one)["median"]
    assert unpaired == pytest.approx(2.67, abs=0.01), unpaired
    with pytest.raises(ValueError, match="zip"):
        peers.pair_ratio(two, one[:-1])


def test_interleaving_turns_round_and_drops_the_warm_up():
    seen: list[str] = []

    def task(name: str) -> Run:
        seen.append(name)
        return Run(seconds=float(len(seen)), tokens=())

    runs = peers.interleaved({name: partial(task, name) for name in "ab"}, 2, warm=1)
    assert "".join(seen) == "abbaab", seen
    assert [one.seconds for one in runs["a"]] == [4.0, 5.0], runs


def test_a_draft_is_held_only_by_the_models_own_configuration(llama):
    """The broken twin is what the documentation suggests: k among `generate`'s arguments."""
    model, prompt = peers.load_peer(str(llama)), peers.random_prompt(260, 12)
    with early_exit_rival.held_draft(model, 2):
        held = early_exit_rival.their_decode(model, prompt, (2, 2), 12)
    assert max(held.drafted) == 2, held
    with early_exit_rival.counted_passes(model) as passes:
        asked = peers.generate(model, prompt, 12, assistant_early_exit=2, num_assistant_tokens=2)
    drafted = early_exit_rival.drafts_by_round(passes, 4)
    assert max(drafted) != 2, drafted
    assert asked.tokens == held.tokens, (asked.tokens, held.tokens)
    assert model.generation_config.num_assistant_tokens is None, "the setting stayed behind"


def test_rival_table_shows_the_document_and_equal_tokens(llama, tmp_path, capsys):
    document, table = run(
        early_exit_rival.main, llama, "--engine", "eager", out=tmp_path / "a.json", capsys=capsys
    )
    assert table.strip() == early_exit_table(document).strip()
    for name, cell in document["sections"].items():
        assert cell["equal_tokens"] == cell["all_tokens"] == 28, (name, cell)
        assert about(cell["theirs_over_ours"]) in table, name
        assert cell["rounds"]["theirs"] - cell["rounds"]["ours"] in (0, 1, 2), (name, cell)


def test_steps_table_shows_the_document(llama, tmp_path, capsys):
    sections = ("short", "batch")
    document, table = run(
        step_speed.main, llama, "--engine", "eager", "--only", *sections,
        out=tmp_path / "a.json", capsys=capsys,
    )  # fmt: skip
    assert table.strip() == step_speed_table(document).strip()
    steps, batch = (document["sections"][name] for name in sections)
    assert steps["equal_tokens"] == {"eager": 5, "transformers": 5, "static": 5}, steps
    assert about(steps["over_compiled"]["transformers"]) in table
    assert batch["equal_tokens"] == batch["all_tokens"], batch
    assert 1.0 < batch["mean_rows"] <= 8.0, batch
    assert steps["machine"]["torch_threads"] >= 1, steps["machine"]


def test_a_second_run_keeps_the_other_sections(llama, tmp_path):
    path = tmp_path / "a.json"
    peers.record(path, str(llama), {"one": {"x": 1}})
    document = peers.record(path, str(llama), {"two": {"x": 2}})
    assert {name: own["x"] for name, own in document["sections"].items()} == {"one": 1, "two": 2}


def test_overhead_is_what_a_round_takes_beyond_its_passes(llama, tmp_path, capsys):
    document, table = run(
        overhead.main, llama, "--engine", "eager", out=tmp_path / "a.json", capsys=capsys
    )
    assert table.strip() == overhead_table(document).strip()
    (section,) = document["sections"].values()
    assert list(section["laws"]) == ["greedy", "sampled", "truncated"], section
    for own in section["laws"].values():
        for one in own:
            passes, whole = one["passes_ms"]["median"], one["round_ms"]["median"]
            assert 0.3 * whole < passes < whole, (passes, whole)


def test_a_call_inside_a_timed_call_counts_once(monkeypatch):
    """On a clock that ticks when it is read; without the depth the sum would be 4."""
    ticks = itertools.count()
    monkeypatch.setattr(overhead.time, "perf_counter", lambda: next(ticks))
    meter = overhead.Meter()
    inner = meter.timed(lambda: None)
    meter.timed(inner)()
    assert meter.seconds == 2, meter


def test_exponents_are_slopes_and_stages_that_did_not_run_have_none():
    assert growth.exponent((2, 4, 8), (3.0, 6.0, 12.0)) == pytest.approx(1.0)
    assert growth.exponent((2, 4, 8), (5.0, 5.0, 5.0)) == pytest.approx(0.0, abs=1e-9)
    assert growth.exponent((2, 4), (0.0, 1.0)) is None


def test_growth_times_the_stages_of_real_calibrations(tmp_path, capsys):
    before = growth.stages_module.run_observe
    document, table = run(growth.main, "--only", "requests", out=tmp_path / "a.json", capsys=capsys)
    assert growth.stages_module.run_observe is before, "a stage stayed wrapped"
    assert table.strip() == growth_table(document).strip()
    section = document["sections"]["requests"]
    assert {"load", "observe", "cost", "walk", "plan"} <= set(section["stages"]), section
    seconds = [stage["seconds"][0] for stage in section["stages"].values()]
    assert 0 < section["total_s"][0] <= sum(seconds) + 1e-6, section
