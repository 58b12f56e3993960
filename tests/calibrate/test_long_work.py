"""D06: stopped in the middle, a run is kept, told incomplete, and ends with the same numbers."""

import json
import shutil
import signal

import pytest
from calibrate_helpers import (
    CONFIG,
    FINISHED,
    LIGHT,
    assert_same_numbers,
    assert_whole,
    command,
    manifest,
    shards,
    stop_after_shards,
    untimed,
)
from checkpoints import run_cli

from selfspec_cli.storage import read_table


@pytest.mark.parametrize(
    ("number", "code", "stage", "count"),
    [(signal.SIGINT, 130, "observe", 3), (signal.SIGTERM, 143, "confirm", 1)],
    ids=["ctrl-c", "sigterm"],
)
def test_d06_a_stopped_run_ends_like_one_that_was_not(
    tiny_checkpoint, long_trace, reference, tmp_path, *, number, code, stage, count
):
    argv = command(tiny_checkpoint, long_trace, tmp_path)
    run = tmp_path / "run"
    got, stderr = stop_after_shards(argv, run, stage, count, number)
    assert got == code, stderr
    assert "Traceback" not in stderr
    assert "the same command goes on from here" in stderr
    assert manifest(run)["status"] == "incomplete"
    kept = {path: path.stat().st_mtime_ns for path in shards(run, stage)}
    assert len(kept) >= count
    assert not (run / "confirm.csv").exists(), "a partial run holds a result"
    assert_whole(run)

    kept_copies = {path.name: path.read_bytes() for path in kept}
    resumed = shutil.copytree(run, tmp_path / "copy")
    assert run_cli(*argv) in FINISHED
    assert manifest(run)["status"] == "done"
    assert not (run / "shards").exists(), "shards hold token ids and must go"
    assert_whole(run)
    assert_same_numbers(run, reference)
    assert {p.name: p.read_bytes() for p in shards(resumed, stage)} == kept_copies


def test_finished_shards_are_not_decoded_again(tiny_checkpoint, long_trace, tmp_path, monkeypatch):
    """Interrupted in this process after two batches: the rerun observes only the others."""
    import selfspec_cli.calibrate.observe_stage as stage

    batches, real = [], stage.observe

    def counted(setting, jobs, *rest):
        if len(batches) == 2:
            raise KeyboardInterrupt
        batches.append([job.path_id for job in jobs])
        return real(setting, jobs, *rest)

    monkeypatch.setattr(stage, "observe", counted)
    argv = command(tiny_checkpoint, long_trace, tmp_path, config_text=LIGHT)
    assert run_cli(*argv) == 130
    again = []
    monkeypatch.setattr(
        stage,
        "observe",
        lambda setting, jobs, *rest: again.append(jobs) or real(setting, jobs, *rest),
    )
    assert run_cli(*argv) in FINISHED
    assert len(batches) == 2
    assert len(again) == 24 // 4 - 2, f"{len(again)} batches observed again"


def forbid(monkeypatch):
    """Make any work on a model an error."""
    import selfspec_cli.calibrate.run as module

    def never(*_, **__):
        raise AssertionError("a complete run was measured again")

    monkeypatch.setattr(module, "load_model", never)


def test_a_complete_run_is_only_read(tiny_checkpoint, long_trace, reference, monkeypatch, capsys):
    capsys.readouterr()
    forbid(monkeypatch)
    before = {path: path.stat().st_mtime_ns for path in reference.rglob("*")}
    assert run_cli(*command(tiny_checkpoint, long_trace, reference.parent)) in FINISHED
    assert "Predicted against measured" in " ".join(capsys.readouterr().out.split())
    assert {path: path.stat().st_mtime_ns for path in reference.rglob("*")} == before


def test_a_torn_artefact_is_made_again(tiny_checkpoint, long_trace, reference, tmp_path, capsys):
    """A file that changed after it was hashed is not trusted."""
    run = shutil.copytree(reference, tmp_path / "run")
    whole = (run / "grid.csv").read_bytes()
    (run / "grid.csv").write_bytes(whole[: len(whole) // 2])
    assert run_cli(*command(tiny_checkpoint, long_trace, tmp_path)) in FINISHED, (
        capsys.readouterr().err
    )
    assert untimed(run, "grid.csv").equals(untimed(reference, "grid.csv"))
    assert manifest(run)["status"] == "done"


def test_fresh_measures_again(tiny_checkpoint, long_trace, reference, tmp_path):
    run = shutil.copytree(reference, tmp_path / "run")
    (run / "notes.txt").write_text("mine")
    assert run_cli(*command(tiny_checkpoint, long_trace, tmp_path, "--fresh")) in FINISHED
    assert_same_numbers(run, reference)
    times = [read_table(folder / "cost.csv")["seconds"].tolist() for folder in (run, reference)]
    assert times[0] != times[1], "the old times are still there"
    assert (run / "notes.txt").read_text() == "mine", "a file of the user was deleted"


def test_another_measurement_is_refused_and_named(tiny_checkpoint, long_trace, reference, capsys):
    capsys.readouterr()
    argv = command(tiny_checkpoint, long_trace, reference.parent)
    before = {path: path.read_bytes() for path in reference.rglob("*") if path.is_file()}
    for more, key in (
        (["--seed", "7"], "seed: 0 there, 7 now"),
        (["--temperatures", "0,0.5"], "temperatures: [0.0, 0.7] there, [0.0, 0.5] now"),
        (["--exit-layers", "1,2"], "exit_layers: [1, 2, 3] there, [1, 2] now"),
    ):
        assert run_cli(*argv, *more) == 2
        said = capsys.readouterr().err
        assert "another measurement" in said, said
        assert key in said, said
        assert "--fresh" in said, said
    assert {path: path.read_bytes() for path in reference.rglob("*") if path.is_file()} == before


def test_another_trace_is_another_measurement(
    tiny_checkpoint, long_trace, reference, tmp_path, capsys
):
    changed = tmp_path / "changed.jsonl"
    changed.write_text(long_trace.read_text().replace("rivers", "meadow"))
    capsys.readouterr()
    assert run_cli(*command(tiny_checkpoint, changed, reference.parent)) == 2
    assert "traces: " in capsys.readouterr().err


def test_no_token_and_no_folder_stays_in_a_finished_run(reference, long_trace):
    """Text lives in shards only; where files lay on this machine is nobody's business."""
    columns = [c for name in ("paths", "observations", "requests")
               for c in read_table(reference / f"{name}.parquet").columns]  # fmt: skip
    assert not {"tokens", "prompt", "text"} & set(columns), columns
    assert str(long_trace.parent) not in (reference / "manifest.json").read_text()


def test_other_context_edges_are_only_another_analysis(
    tiny_checkpoint, long_trace, reference, tmp_path, monkeypatch
):
    """The grid follows the edges although nothing is decoded again, and goes back with them."""
    run = shutil.copytree(reference, tmp_path / "run")
    forbid(monkeypatch)
    edges = CONFIG + "context_edges: [0, 20, 40]\n"
    argv = command(tiny_checkpoint, long_trace, tmp_path, config_text=edges)
    assert run_cli(*argv) in FINISHED
    grid = read_table(run / "grid.csv").query("evidence == 'own'")
    assert set(grid["context_min"]) == {0, 20, 40}
    assert manifest(run)["config"]["context_edges"] == [0, 20, 40]
    assert run_cli(*command(tiny_checkpoint, long_trace, tmp_path)) in FINISHED
    assert untimed(run, "grid.csv").equals(untimed(reference, "grid.csv"))


def test_other_edges_count_in_a_run_that_goes_on_too(tiny_checkpoint, long_trace, tmp_path):
    """A run stopped after its walk must not keep the grid of the edges it was begun with."""
    argv = command(tiny_checkpoint, long_trace, tmp_path, config_text=LIGHT)
    assert run_cli(*argv) in FINISHED
    written = tmp_path / "run" / "manifest.json"
    entry = manifest(tmp_path / "run") | {"status": "incomplete"}
    written.write_text(json.dumps(entry))
    edges = LIGHT + "context_edges: [0, 20, 40]\n"
    assert run_cli(*command(tiny_checkpoint, long_trace, tmp_path, config_text=edges)) in FINISHED
    grid = read_table(tmp_path / "run" / "grid.csv").query("evidence == 'own'")
    assert set(grid["context_min"]) == {0, 20, 40}


def test_edges_do_not_choose_the_requests(tiny_checkpoint, long_trace, tmp_path):
    """A limit draws the same requests whatever the edges of the analysis."""
    drawn = []
    for edges in ("[0]", "[0, 20, 30, 40]"):
        folder = tmp_path / str(len(drawn))
        folder.mkdir()
        config = LIGHT + f"limit: 7\ncontext_edges: {edges}\n"
        assert (
            run_cli(*command(tiny_checkpoint, long_trace, folder, config_text=config)) in FINISHED
        )
        drawn.append(read_table(folder / "run" / "requests.parquet")["request_id"].tolist())
    assert drawn[0] == drawn[1]
