"""What a gate refuses: runs, plans and rules that cannot be judged by; never a pass by default."""

import pytest
from gate_runs import HERE, change_manifest, change_plan, copy_of, passing_run, rewrite

from selfspec_cli.config import load_config
from selfspec_cli.errors import ConfigError, PlanError, RunDirError, SelfspecError, StorageError
from selfspec_cli.gate.compare import compare_runs
from selfspec_cli.gate.evidence import read_evidence
from selfspec_cli.gate.rules import GateRules
from selfspec_cli.gate.rules_file import load_rules
from selfspec_cli.gate.run_gate import GateOptions, run_gate
from selfspec_cli.gate.side import load_side
from selfspec_cli.storage import file_sha256, read_table


@pytest.fixture(scope="module")
def passing(tmp_path_factory):
    return passing_run(tmp_path_factory.mktemp("bad") / "run")


@pytest.fixture
def run(passing, tmp_path):
    return copy_of(passing, tmp_path)


def in_rule(**values):
    return lambda plan: plan["rules"][0].update(values)


NONSENSE = {
    # name: (change, what the message must name)
    "no cell": (in_rule(drafter={"kind": "early_exit", "exit_layer": None}), "exit layer"),
    "layer beyond the model": (
        in_rule(drafter={"kind": "early_exit", "exit_layer": 7}), "rules.0.drafter.exit_layer: 7",
    ),
    "crossed interval": (
        in_rule(speedup={"low": 1.5, "estimate": 1.4, "high": 1.3}), "rules.0.speedup.low: 1.5",
    ),
    "estimate outside": (
        in_rule(speedup={"low": 1.1, "estimate": 9.0, "high": 1.3}), "rules.0.speedup.estimate: 9",
    ),
    "negative speedup": (in_rule(speedup={"estimate": -1.0}), "rules.0.speedup.estimate: -1"),
    "NaN speedup": (in_rule(speedup={"estimate": "nan"}), "rules.0.speedup.estimate"),
    "share above 1": (in_rule(slow_share=1.5), "rules.0.slow_share: 1.5"),
    "negative count": (in_rule(evidence_requests=-3), "rules.0.evidence_requests: -3"),
    "band upside down": (in_rule(context_max=0), "rules.0.context_max: 0"),
    "verdict": (lambda plan: plan.update(verdict="do not enable"), "verdict: 'do not enable'"),
    "count of enabled": (lambda plan: plan["total"].update(num_enabled=7), "total.num_enabled: 7"),
    "day": (lambda plan: plan["traces"].update(date="yesterday"), "traces.date: 'yesterday'"),
    "another run's": (lambda plan: plan.update(measurement_hash="f" * 64), "measurement_hash"),
    "newer": (lambda plan: plan.update(schema_version=99), "schema version 99"),
    "unknown key": (lambda plan: plan.update(speed=2), "speed"),
}  # fmt: skip


@pytest.mark.parametrize("case", NONSENSE)
def test_a_plan_edited_into_nonsense_is_refused(run, case):
    edit, named = NONSENSE[case]
    with pytest.raises(PlanError) as caught:
        run_gate(change_plan(run, edit), GateRules(), GateOptions(today=HERE))
    assert named in str(caught.value)
    assert "plan.yaml" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_run_that_did_not_end_is_refused(run):
    with pytest.raises(RunDirError, match=r"manifest\.json: status is 'incomplete'"):
        read_evidence(change_manifest(run, lambda m: m.update(status="incomplete")))


@pytest.mark.parametrize("key", ["stages", "artefacts", "measurement"])
def test_a_manifest_without_its_parts_is_refused(run, key):
    with pytest.raises(RunDirError, match=f"{key} is missing"):
        read_evidence(change_manifest(run, lambda m: m.update({key: None})))


def test_runs_of_another_schema_and_other_folders_are_refused(run, tmp_path):
    with pytest.raises(RunDirError, match="schema version 99"):
        read_evidence(change_manifest(run, lambda m: m.update(schema_version=99)))
    with pytest.raises(RunDirError, match="not a run directory"):
        read_evidence(tmp_path)
    (run / "manifest.json").write_text("{", encoding="utf-8")
    with pytest.raises(RunDirError, match=r"manifest\.json"):
        read_evidence(run)


def test_a_table_that_was_changed_or_lost_is_refused(run):
    text = (run / "confirm.csv").read_text(encoding="utf-8")
    (run / "confirm.csv").write_text(text.replace("True", "False", 1), encoding="utf-8")
    with pytest.raises(StorageError, match=r"confirm\.csv: is not the file that the run wrote"):
        read_evidence(run)
    (run / "confirm.csv").unlink()
    with pytest.raises(StorageError, match=r"confirm\.csv: this file of the run is gone"):
        read_evidence(run)
    (run / "confirm.csv").write_text(text, encoding="utf-8")
    (run / "plan.yaml").unlink()
    with pytest.raises(StorageError, match=r"plan\.yaml: the run has no plan"):
        read_evidence(run)


LOST = ("requests.parquet", "paths.parquet", "observations.parquet", "cost.csv", "walk.parquet")


@pytest.mark.parametrize("name", [*LOST, "confirm.csv"])
def test_whatever_a_plan_rests_on_must_be_there_and_its_own(run, passing, name):
    """By `gate`, and by `compare` and `--baseline` on either side, which read other files."""
    whole = (run / name).read_bytes()
    for spoilt in (whole[: len(whole) // 2], None):
        if spoilt is None:
            (run / name).unlink()
        else:
            (run / name).write_bytes(spoilt)
        told = "is gone" if spoilt is None else "is not the file that the run wrote"
        for judge in (read_evidence, lambda path: compare_runs(passing, path), load_side):
            with pytest.raises(StorageError, match=rf"{name}: .*{told}") as caught:
                judge(run)
            assert caught.value.exit_code == 2


def in_manifest(*keys, value):
    def edit(manifest):
        for key in keys[:-1]:
            manifest = manifest[key]
        manifest[keys[-1]] = value

    return edit


FOREIGN = {
    # field the message must name: change of the manifest
    "stages": in_manifest("stages", value=["cost"]),
    "stages.cost": in_manifest("stages", "cost", value="done"),
    "stages.cost.layer_kinds": in_manifest("stages", "cost", "layer_kinds", value=7),
    "artefacts": in_manifest("artefacts", value="all"),
    "artefacts.confirm.csv": in_manifest("artefacts", "confirm.csv", value="abc"),
    "artefacts.cost.csv": in_manifest("artefacts", "cost.csv", value={"sha256": 5}),
    "measurement": in_manifest("measurement", value=[1]),
    "measurement.exit_layers": in_manifest("measurement", "exit_layers", value="abc"),
    "measurement.draft_lengths": in_manifest("measurement", "draft_lengths", value=[0]),
    "provenance": in_manifest("provenance", value=[1]),
    "provenance.device": in_manifest("provenance", "device", value="cpu"),
    "provenance.model": in_manifest("provenance", "model", value=[1]),
    "seeds": in_manifest("seeds", value=3),
    "seeds.run": in_manifest("seeds", "run", value="x"),
    "config": in_manifest("config", value="quickstart"),
    "status": in_manifest("status", value=True),
    "schema version": in_manifest("schema_version", value=True),
}


@pytest.mark.parametrize("field", FOREIGN)
def test_a_manifest_that_no_calibration_writes_is_refused_by_field(run, passing, field):
    change_manifest(run, FOREIGN[field])
    for judge in (read_evidence, lambda path: compare_runs(passing, path)):
        with pytest.raises(RunDirError) as caught:
            judge(run)
        assert field in str(caught.value)
        assert "manifest.json: " in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), -1.0])
def test_a_time_that_is_none_is_refused_not_skipped(run, value):
    """A sum would skip it, and the rest might look faster."""
    table = read_table(run / "confirm.csv")
    table.loc[3, "seconds"] = value
    with pytest.raises(StorageError, match=r"confirm\.csv: seconds of row 4"):
        read_evidence(rewrite(run, "confirm.csv", table))


def test_a_plan_changed_by_hand_is_never_a_pass(run):
    """Broken twin: with the hash of the very file the check is not there."""
    own = file_sha256(run / "plan.yaml")
    for digest, outcomes in ((own, []), ("0" * 64, ["no_verdict"])):
        entry = {"sha256": digest, "bytes": 1}
        change_manifest(run, lambda m, entry=entry: m["artefacts"].update({"plan.yaml": entry}))
        report = run_gate(run, GateRules(), GateOptions(today=HERE))
        assert [c.outcome for c in report.checks if c.subject == "plan"] == outcomes
    assert report.outcome == "no_verdict"


# --- rules --------------------------------------------------------------------------------------

RULES = {
    # name: (text, what the message must say)
    "unknown check": ("speedupp: {}", "rules.yaml:1: unknown check 'speedupp'"),
    "unknown key": ("speedup:\n  min_speedupp: 1.2", "rules.yaml:2: unknown key"),
    "twice": ("age: {}\nspeedup: {}\nage: {}", "'age' is given twice, on lines 1 and 3"),
    "NaN": ("speedup:\n  min_speedup: .nan", "rules.yaml:2: speedup.min_speedup"),
    "infinite": ("age:\n\n  max_days: .inf", "rules.yaml:3: age.max_days"),
    "negative": ("speedup: {min_speedup: -1}", "greater than 0 (got -1)"),
    "zero": ("speedup: {min_speedup: 0}", "greater than 0 (got 0)"),
    "share of 95": ("memory: {max_share: 95}", "memory.max_share"),
    "text": ("speedup: {min_speedup: fast}", "(got 'fast')"),
    "truth": ("speedup: {min_speedup: true}", "(got True)"),
    "no choice": ("age: {on_fail: ignore}", "age.on_fail"),
    "fraction of a request": ("memory: {concurrency: 1.5}", "memory.concurrency"),
    "list": ("- speedup", "a mapping of checks, this is a list"),
    "none": ("speedup:", "speedup"),
    "below gate": ("gate: {speedup: {}}", "not below `gate`"),
    "torn": ("speedup: {", "not valid YAML"),
    "empty": ("", "rules.yaml: holds no rule"),
    "comments": ("# speedup: {min_speedup: 2}", "rules.yaml: holds no rule"),
    "two documents": ("speedup: {}\n---\nage: {}", "rules.yaml:2: not valid YAML"),
    "a call": ("age: !!python/object/apply:os.getcwd []", "rules.yaml:1: not valid YAML"),
    "a number": ("5", "a mapping of checks, this is a int"),
    "a key that is none": ("null: {}", "keys should be strings (got None)"),
    "beyond floats": ("age: {max_days: 1e400}", "rules.yaml:1: age.max_days"),
}


@pytest.mark.parametrize("case", RULES)
def test_bad_rules_name_their_place(tmp_path, case):
    text, told = RULES[case]
    (tmp_path / "rules.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load_rules(str(tmp_path / "rules.yaml"))
    assert told in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("data", "told"),
    [(bytes(range(128, 256)), "not UTF-8 text"), ("a: é".encode("latin-1"), "not UTF-8 text")],
)
def test_rules_that_are_no_text_are_refused(tmp_path, data, told):
    (tmp_path / "rules.yaml").write_bytes(data)
    with pytest.raises(ConfigError, match=rf"rules\.yaml:1: {told}"):
        load_rules(str(tmp_path / "rules.yaml"))


def test_rules_without_a_name_or_in_a_folder_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"^--rules: cannot be read"):
        load_rules("")
    with pytest.raises(ConfigError, match=f"^{tmp_path}: cannot be read"):
        load_rules(str(tmp_path))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 0.0])
def test_an_impossible_least_speedup_is_refused(value):
    with pytest.raises(ConfigError, match=r"^--min-speedup: "):
        load_rules(min_speedup=value)


def test_nearest_check_is_told(tmp_path):
    (tmp_path / "rules.yaml").write_text("exactnes: {}", encoding="utf-8")
    with pytest.raises(ConfigError, match="Did you mean exactness"):
        load_rules(str(tmp_path / "rules.yaml"))
    with pytest.raises(ConfigError, match="Did you mean gate-strict"):
        load_rules("gate-strickt")


def test_the_default_file_states_exactly_the_defaults():
    assert load_rules() == GateRules()


def test_strict_rules_make_acceptance_memory_and_tail_hard():
    strict = load_rules("gate-strict")
    for name in ("acceptance_floor", "memory", "slow_share", "request_p99"):
        assert strict.rule(name).on_fail == "fail"
    assert strict.rule("memory").on_no_verdict == "stop"
    assert load_rules().acceptance_floor.on_fail == "warn"


def test_numbers_in_every_spelling(tmp_path):
    (tmp_path / "rules.yaml").write_text(
        "age: {max_days: 1e3}\nenough_requests: {min_requests: 1e2}"
    )
    rules = load_rules(str(tmp_path / "rules.yaml"))
    assert (rules.age.max_days, rules.enough_requests.min_requests) == (1000.0, 100)


def test_options_win_over_the_file():
    rules = load_rules("gate-strict", min_speedup=1.2, concurrency=8)
    assert (rules.speedup.min_speedup, rules.memory.concurrency) == (1.2, 8)


@pytest.mark.parametrize("case", ["D_dup", "D_unknown", "D_gate_nan"])
def test_collected_bad_rules_are_refused(shared, case):
    """Never a gate at the last of two limits, at a default, or disarmed by NaN."""
    file = shared / "cases" / "inputs" / "open" / f"{case}.yaml"
    for load in (load_rules, load_config):
        with pytest.raises(SelfspecError) as caught:
            load(str(file))
        assert f"{case}.yaml:" in str(caught.value)
        assert caught.value.exit_code == 2


def test_a_config_with_rules_points_to_the_gate(tmp_path):
    (tmp_path / "config.yaml").write_text("gate: {min_speedup: 1.2}", encoding="utf-8")
    with pytest.raises(ConfigError, match="selfspec gate RUN --rules FILE"):
        load_config(str(tmp_path / "config.yaml"))
