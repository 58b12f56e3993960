"""Findings of doctor that a run's tables show: each is seen with its numbers, none by noise."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from report_runs import STEADY, make_run

from selfspec_cli.errors import StorageError
from selfspec_cli.report.diagnose import diagnose
from selfspec_cli.report.evidence import gather, pooled_grid
from selfspec_cli.report.figure_data import acceptance, acceptance_by_layer, predicted_measured
from selfspec_cli.report.finding_decodes import accepts_fewer
from selfspec_cli.report.finding_production import rate_interval
from selfspec_cli.report.finding_types import Memory, Production
from selfspec_cli.report.findings import find
from selfspec_cli.report.tables import read_run
from selfspec_cli.storage import RunDir


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two tasks that both pay clearly at every batch size."""
    folder = tmp_path_factory.mktemp("runs") / "well"
    return make_run(folder, {"code": 0.93, "json": 0.9}, seed=3, batches=STEADY)


@pytest.fixture(scope="module")
def evidence(run):
    tables = read_run(run)
    frames = {
        "by_layer": acceptance_by_layer(acceptance(tables), tables.plan),
        "measured": predicted_measured(tables),
        "grid": pooled_grid(tables),
    }
    return gather(tables, frames, ())


def found(evidence):
    return {one.code: one for one in find(evidence)}


def decodes(evidence, **columns):
    """confirm.csv with the columns that real runs have, and others changed."""
    table = evidence.decodes.copy()
    counts = {name: table[f"predicted_{name}"] for name in ("tested", "accepted")}
    free = {f"free_{name}": values for name, values in counts.items()}
    gaps = {"first_difference": np.nan, "top2_gap": np.nan}
    return replace(evidence, decodes=table.assign(**{**counts, **free, **gaps, **columns}))


def test_a_run_that_is_well_has_no_findings(run, evidence):
    assert diagnose(run).findings == ()
    assert found(decodes(evidence)) == {}


def differ(evidence, places, lengths):
    """The first greedy decodes differ at these places; all outputs have a length."""
    table = decodes(evidence).decodes
    greedy = table.index[table["temperature"] == 0.0]
    table.loc[greedy, "committed"] = lengths
    wrong = greedy[: len(places)]
    table["exact"] = table["exact"].astype(object)
    table.loc[wrong, "exact"] = False
    table.loc[wrong, "first_difference"] = places
    table.loc[wrong, "top2_gap"] = 0.5
    return replace(evidence, decodes=table)


def test_early_differences_are_a_rollback_and_late_ones_a_length(evidence):
    early = found(differ(evidence, [3, 90, 95], 120))
    assert "greedy_mismatch" in early
    assert "3 of 32 greedy decodes differ" in early["greedy_mismatch"].evidence
    assert "positions 3 to 95 (median 90)" in early["greedy_mismatch"].evidence
    late = found(differ(evidence, [80, 90, 95], 120))
    assert "long_outputs_degrade" in late
    assert "greedy_mismatch" not in late
    assert "greedy_mismatch" in found(differ(evidence, [80, 90], 120)), "two are no pattern"


def test_a_numeric_tie_is_no_difference(evidence):
    wrong = differ(evidence, [3], 120)
    tied = wrong.decodes.assign(is_tie=wrong.decodes["exact"].eq(False))
    assert found(replace(wrong, decodes=tied)) == {}


def test_batches_that_differ_are_told_apart_from_single_requests(evidence):
    table = pd.DataFrame(
        {"batch_size": [4, 8, 8], "temperature": 0.0, "exact": [True, False, False],
         "is_tie": None}
    )  # fmt: skip
    one = found(replace(evidence, batch_decodes=table))["batch_mismatch"]
    assert "2 of 3 decodes" in one.evidence
    assert "batch sizes 8. One request at a time, all" in one.evidence


def test_a_law_that_failed_its_test_is_named(evidence):
    proof = {"passed": False, "smallest_p": 1e-9, "positions": 6, "alarm_level": 2e-5,
             "false_alarm": 1e-4}  # fmt: skip
    assert "p 1e-09" in found(replace(evidence, law_proof=proof))["sampled_law_differs"].evidence
    passed = {**proof, "passed": True}
    assert found(replace(evidence, law_proof=passed)) == {}


def test_fewer_accepted_than_walked_is_named_at_the_rate_that_was_seen(evidence):
    table = decodes(evidence).decodes
    fewer = {name: 0.7 * table[name] for name in ("accepted", "free_accepted")}
    seen = found(decodes(evidence, **fewer))["accepts_fewer"]
    assert "62 % of the tested drafts against 88 %" in seen.evidence, seen.evidence
    near = {name: 0.95 * table[name] for name in ("accepted", "free_accepted")}
    assert "accepts_fewer" not in found(decodes(evidence, **near)), "4 points are no fault"
    recorded = decodes(evidence, **fewer, source="recorded")
    assert "accepts_fewer" not in found(recorded), "recorded text need not be the model's own"


def test_sampled_decodes_by_chance_alone_are_not_accused(evidence):
    """200 sound runs of 8 groups, acceptance 0.8 mixed over groups: false alarm 0.1 % a run, so
    more than one alarm has a probability of 1.7 %, with this seed none."""
    rng = np.random.default_rng(11)
    base = decodes(evidence).decodes
    alarms = 0
    for _ in range(200):
        mean = rng.beta(8, 2, 8)
        tested = rng.integers(10, 60, 8)
        table = base.iloc[:8].assign(
            temperature=0.7, group_id=[f"g{at}" for at in range(8)], exact=None,
            predicted_tested=tested * 1.0, predicted_accepted=tested * mean,
            free_tested=tested, free_accepted=rng.binomial(tested, mean),
        )  # fmt: skip
        alarms += len(list(accepts_fewer(replace(evidence, decodes=table))))
    assert alarms <= 1, f"{alarms} of 200 sound runs accused"


def test_a_change_of_pace_is_told_with_its_size(evidence):
    slowed = decodes(evidence).decodes
    times = {name: 1.4 * slowed[name] for name in ("ar_seconds", "seconds")}
    seen = found(decodes(evidence, **times))
    assert "1.40 times" in seen["pace_changed"].evidence
    assert "prediction_off" not in seen, "both slowed alike: the speedup holds"
    little = {name: 1.1 * slowed[name] for name in ("ar_seconds", "seconds")}
    assert "pace_changed" not in found(decodes(evidence, **little))


def test_the_slowest_requests_are_listed(evidence):
    rule, rows = evidence.cells[0]
    gains = np.full(len(rows), 1.4)
    gains[2:6] = [0.7, 0.8, 0.6, 0.9]
    tail = rows.assign(seconds=rows["ar_seconds"].to_numpy() / gains)
    seen = found(replace(evidence, cells=[(rule, tail)]))["slow_tail"]
    assert f"4 of {len(rows)} requests" in seen.evidence
    names = rows["request_id"].tolist()
    assert seen.evidence.index(names[4]) < seen.evidence.index(names[2]), "the slowest comes first"
    assert "(0.60x, " in seen.evidence
    gains[2:5] = 1.4  # one slow request of 14
    one = rows.assign(seconds=rows["ar_seconds"].to_numpy() / gains)
    assert "slow_tail" not in found(replace(evidence, cells=[(rule, one)]))


def test_a_second_cache_shows_in_peak_memory(evidence):
    arms = {"arm": ["ar", "plan", "forced"], "task": "code", "context_min": 0, "temperature": 0.0,
            "batch_size": 1}  # fmt: skip
    twice = pd.DataFrame({**arms, "peak_memory_bytes": [2.0**30, 2.0**30, 1.5 * 2**30]})
    seen = found(replace(evidence, bench=twice))["memory_above_plain"]
    assert "1.50 GiB against 1.00 GiB plain, 1.50 times" in seen.evidence
    equal = twice.assign(peak_memory_bytes=2.0**30)
    assert found(replace(evidence, bench=equal)) == {}
    unknown = twice.assign(peak_memory_bytes=np.nan)
    assert found(replace(evidence, bench=unknown)) == {}


def test_a_device_that_is_short_of_memory(evidence):
    """Weights 800 bytes, a token 1 byte a row, 8 rows: room for 12 tokens a row, not for 80."""
    short = Memory(device_bytes=1000.0, weight_bytes=800.0, token_bytes=1.0)
    seen = found(replace(evidence, memory=short))["device_memory_short"]
    assert "8 rows" in seen.evidence
    assert "adapters" in seen.remedy
    assert seen.remedy.index("adapters") < seen.remedy.index("batch")
    enough = replace(short, device_bytes=1e5)
    assert found(replace(evidence, memory=enough)) == {}


def test_memory_is_the_devices_own(run, evidence):
    """Of a GPU its own, not the host's; the footprint where the run kept one."""
    tables = read_run(run)
    provenance = {"device": {"kind": "cuda", "memory_bytes": 9e9, "gpu_memory_bytes": 4e9}}
    facts = {"weights_bytes": 3e9, "kv_bytes_per_token": 1e5}
    manifest = {**tables.manifest, "provenance": provenance, "footprint": facts}
    frames = {"by_layer": evidence.by_layer, "measured": evidence.measured, "grid": evidence.grid}
    seen = gather(replace(tables, manifest=manifest), frames, ()).memory
    assert seen == Memory(device_bytes=4e9, weight_bytes=3e9, token_bytes=1e5)
    without = gather(replace(tables, manifest={**manifest, "footprint": {}}), frames, ()).memory
    assert without is not None
    assert without.weight_bytes == pytest.approx(0.005 * 1e10), "what a step was said to read"


def test_production_is_compared_with_an_interval(evidence):
    rows = pd.concat([rows for rule, rows in evidence.cells if rule.enabled])
    drafted = int(1000 * rows["drafted"].sum() / rows["rounds"].sum())
    rate = rows["accepted"].sum() / rows["drafted"].sum()

    def told(share, drafted=drafted):
        accepted = int(share * drafted)
        counts = Production(source="s", rounds=1000, drafted=drafted, accepted=accepted)
        return found(replace(evidence, production=counts))

    seen = told(0.5)["production_accepts_less"]
    assert "s: 50 % of the drafted tokens (47 to 53 %); here " in seen.evidence, seen.evidence
    assert told(rate) == {}, "the same rate"
    assert told(0.95) == {}, "more than offline is no complaint"
    assert set(told(0.5, 2 * drafted)) == {"production_drafts_differ"}


def test_the_interval_of_production_covers_correlated_tokens():
    """Tokens of a round all accepted or all refused, the worst case: 95 % of 2,000 intervals hold
    the truth; fewer than 93.5 % would be 3 standard errors below."""
    rng, truth = np.random.default_rng(2), 0.7
    held = 0
    for kept in rng.binomial(400, truth, 2000):
        counts = Production(source="s", rounds=400, drafted=1200, accepted=3 * int(kept))
        low, high = rate_interval(counts)
        held += low <= truth <= high
    assert held / 2000 > 0.935, held / 2000


def test_a_run_that_ended_while_observing_is_refused(tmp_path):
    early = RunDir.open(tmp_path / "early", "m")
    early.begin(config={}, measurement={"exit_layers": [1], "draft_lengths": [1]})
    with pytest.raises(StorageError, match="stage observe of this run is not complete"):
        diagnose(tmp_path / "early")


def test_a_run_without_a_plan_is_judged_by_its_predictions(tmp_path):
    folder = make_run(tmp_path / "run", {"code": 0.93}, seed=3, confirm=False, batches=STEADY)
    whole = diagnose(folder).findings
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    manifest["artefacts"].pop("plan.yaml", None)
    manifest["config"]["plan"] = {"min_requests": 10}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    (folder / "plan.yaml").unlink()
    assert diagnose(folder).findings == whole
