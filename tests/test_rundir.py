import json
import os
from pathlib import Path

import pandas as pd
import pytest

from selfspec_cli.errors import EXIT_INPUT, RunDirError, StorageError
from selfspec_cli.storage import RunDir, read_document, write_document, write_table

MEASUREMENT = {"model": "demo", "seed": 0, "draft_lengths": [1, 2]}


@pytest.fixture
def begun(tmp_path):
    """A run directory with a manifest, one finished stage and one shard."""
    run = RunDir.open(tmp_path / "run", "hash-one", measurement=MEASUREMENT)
    run.begin(argv=["selfspec", "calibrate"], measurement=MEASUREMENT)
    write_table(pd.DataFrame({"task": ["a"]}), run.artefact("paths.parquet"))
    run.finish_stage("observe", ["paths.parquet"], tokens=7)
    write_table(pd.DataFrame({"x": [1]}), run.shard_path("confirm", ("a", 1)))
    return run


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


# --- may this folder be used? -------------------------------------------------------------------


def test_open_leaves_no_trace(tmp_path):
    """Input errors found later, such as an unknown model, must not leave a half-made run."""
    RunDir.open(tmp_path / "run", "h")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "empty").mkdir()
    RunDir.open(tmp_path / "empty", "h")
    assert list((tmp_path / "empty").iterdir()) == []


def test_missing_parent_is_refused(tmp_path):
    with pytest.raises(RunDirError, match=r"parent folder .*none' does not exist"):
        RunDir.open(tmp_path / "none" / "run", "h")
    assert list(tmp_path.iterdir()) == []


def test_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(RunDirError, match=r"run: is a file") as error:
        RunDir.open(tmp_path / "run", "h", fresh=True)
    assert error.value.exit_code == EXIT_INPUT
    assert (tmp_path / "run").read_text() == "mine"


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize(
    "foreign", [{"notes.txt": "mine"}, {"manifest.json": '{"name": "web app"}', "plan.yaml": "x"}]
)
def test_foreign_files_are_refused_and_left_alone(tmp_path, foreign, fresh):
    for name, text in foreign.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(RunDirError):
        RunDir.open(tmp_path, "h", fresh=fresh)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == foreign


def test_unwritable_folder_is_found_by_writing():
    if not Path("/proc/self").is_dir():
        pytest.skip("needs a file system that refuses even the superuser (/proc)")
    with pytest.raises(RunDirError, match="cannot be written"):
        RunDir.open(Path("/proc/selfspec-run"), "h")


def test_read_only_folder_is_refused(tmp_path):
    if os.geteuid() == 0:
        pytest.skip("the superuser writes to read-only folders")
    (tmp_path / "run").mkdir(mode=0o500)
    with pytest.raises(RunDirError, match="cannot be written"):
        RunDir.open(tmp_path / "run", "h")


def test_other_measurement_names_both_hashes_and_the_keys(begun):
    now = MEASUREMENT | {"seed": 3, "model": "other"}
    with pytest.raises(RunDirError) as error:
        RunDir.open(begun.path, "hash-two", measurement=now)
    text = str(error.value)
    assert "hash-one there, hash-two now" in text, text
    assert "model: 'demo' there, 'other' now; seed: 0 there, 3 now" in text, text
    assert "--fresh" in text, text


def test_same_measurement_resumes(begun):
    again = RunDir.open(begun.path, "hash-one", measurement=MEASUREMENT)
    assert again.resumed
    assert again.stage_done("observe")
    again.begin(argv=["selfspec"], measurement=MEASUREMENT)
    assert again.stage_done("observe"), "begin must keep what is finished"
    assert len(again.finished_shards("confirm")) == 1


@pytest.mark.parametrize("content", ['{"schema_version": 1', "[]", '{"measurement_hash": "h"}'])
def test_torn_manifest_is_refused_with_a_way_out(begun, content):
    (begun.path / "manifest.json").write_text(content)
    with pytest.raises(RunDirError, match=r"manifest\.json.*\n.*--fresh|--fresh"):
        RunDir.open(begun.path, "hash-one")


def test_torn_manifest_can_be_measured_afresh(begun):
    (begun.path / "manifest.json").write_text('{"schema')
    run = RunDir.open(begun.path, "hash-two", fresh=True)
    run.begin()
    assert names(begun.path) == ["manifest.json"]


def test_load_needs_a_run(tmp_path, begun):
    assert RunDir.load(begun.path).measurement_hash == "hash-one"
    (tmp_path / "other").mkdir()
    with pytest.raises(RunDirError, match="not a run directory"):
        RunDir.load(tmp_path / "other")


# --- fresh --------------------------------------------------------------------------------------


def test_fresh_deletes_what_a_run_writes_and_nothing_else(begun):
    (begun.path / "notes.txt").write_text("mine")
    (begun.path / "mine").mkdir()
    (begun.path / "mine" / "paths.parquet").write_text("mine")
    run = RunDir.open(begun.path, "hash-two", fresh=True)
    assert "paths.parquet" in names(begun.path), "open must not delete: the model may not load"
    run.begin()
    assert names(begun.path) == ["manifest.json", "mine/paths.parquet", "notes.txt"]
    assert not run.resumed
    assert not run.stage_done("observe")


def test_fresh_never_follows_a_listed_name_out_of_the_folder(begun, tmp_path):
    (tmp_path / "precious").write_text("mine")
    manifest = read_document(begun.path / "manifest.json")
    manifest["artefacts"]["../precious"] = {}
    write_document(manifest, begun.path / "manifest.json")
    RunDir.open(begun.path, "h", fresh=True).begin()
    assert (tmp_path / "precious").read_text() == "mine"


def test_fresh_does_not_empty_the_target_of_a_link(begun, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "photo").write_text("mine")
    (begun.path / "figures").symlink_to(tmp_path / "elsewhere")
    RunDir.open(begun.path, "h", fresh=True).begin()
    assert (tmp_path / "elsewhere" / "photo").read_text() == "mine"


# --- manifest and stages ------------------------------------------------------------------------


def test_manifest_holds_no_folder_of_this_machine(tmp_path):
    run = RunDir.open(tmp_path / "run", "h")
    here = str(tmp_path / "model")
    run.begin(
        argv=["selfspec", "-m", here, f"--out={here}", "rel/path"],
        measurement={"model": here},
        config={"chat_template": here, "traces": [here]},
    )
    assert str(tmp_path) not in (run.path / "manifest.json").read_text()
    assert run.manifest["argv"] == ["selfspec", "-m", "model", "--out=model", "rel/path"]


def test_stage_with_a_changed_or_missing_artefact_is_not_done(begun):
    path = begun.artefact("paths.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:-1])
    assert not begun.stage_done("observe"), "a torn artefact counts as finished"
    path.unlink()
    assert not begun.stage_done("observe"), "a missing artefact counts as finished"
    path.write_bytes(content)
    assert begun.stage_done("observe")


def test_running_or_interrupted_stage_is_not_done(begun):
    for status in ("running", "interrupted"):
        begun.set_stage("observe", status)
        assert not RunDir.load(begun.path).stage_done("observe"), status


def test_stage_cannot_finish_without_its_artefact(begun):
    with pytest.raises(StorageError, match=r"walk\.parquet: the file is missing"):
        begun.finish_stage("walk", ["walk.parquet"])
    assert not begun.stage_done("walk")


def test_artefact_hashes_and_facts_are_in_the_manifest(begun):
    manifest = json.loads((begun.path / "manifest.json").read_text())
    entry = manifest["artefacts"]["paths.parquet"]
    assert (len(entry["sha256"]), entry["bytes"]) == (
        64,
        begun.artefact("paths.parquet").stat().st_size,
    )
    assert manifest["stages"]["observe"] == {
        "status": "done", "artefacts": ["paths.parquet"], "tokens": 7,
    }  # fmt: skip
    assert manifest["schema_version"] == 1


def test_read_is_used_plus_skipped(begun):
    skipped = {
        "not UTF-8": {"rows": 1, "lines": ["a.jsonl:4"]},
        "over length": {"rows": 2, "lines": ["a.jsonl:7", "b.jsonl:1"]},
    }
    begun.record_read(read=10, skipped=skipped, notes=["no temperature in the trace: 3"])
    assert begun.manifest["read"] == {
        "read": 10, "used": 7, "skipped": skipped, "notes": ["no temperature in the trace: 3"],
    }  # fmt: skip
    with pytest.raises(ValueError, match="3 rows skipped of 2 read"):
        begun.record_read(read=2, skipped={"a": {"rows": 3, "lines": []}})


def test_manifest_copy_cannot_change_the_run(begun):
    begun.manifest["stages"] = {}
    assert begun.stage_done("observe")


# --- shards -------------------------------------------------------------------------------------


def test_labels_never_become_file_names(begun):
    labels = ["../../escape", "a/b", "con", ".", "NUL", "A", "a", "x" * 300]
    paths = [begun.shard_path("sweep", (label, 1)) for label in labels]
    lowered = {str(path).lower() for path in paths}
    assert len(lowered) == len(labels), f"{len(lowered)} files for {len(labels)} labels"
    for path in paths:
        assert path.resolve().parent == (begun.path / "shards" / "sweep").resolve()
        assert len(path.name) < 60, len(path.name)


def test_shard_name_is_stable_and_unfinished_shards_do_not_count(begun):
    path = begun.shard_path("sweep", ("a", 1, 0.7))
    assert path == RunDir.load(begun.path).shard_path("sweep", ("a", 1, 0.7))
    assert begun.finished_shards("sweep") == ()
    path.with_name(f".{path.name}.1.tmp.parquet").write_bytes(b"half")
    assert begun.finished_shards("sweep") == ()
    path.write_bytes(b"")
    assert begun.finished_shards("sweep") == (path,)


def test_clear_shards_leaves_other_stages(begun):
    begun.shard_path("sweep", 1).write_bytes(b"")
    begun.clear_shards("sweep")
    assert begun.finished_shards("sweep") == ()
    assert len(begun.finished_shards("confirm")) == 1
    begun.clear_shards("confirm")
    assert not (begun.path / "shards").exists()


@pytest.mark.parametrize("stage", ["../x", "", "A/b"])
def test_stage_names_are_plain(begun, stage):
    with pytest.raises(ValueError, match="not a stage name"):
        begun.shard_path(stage, 1)
    with pytest.raises(ValueError, match="not an artefact name"):
        begun.artefact("../x")
