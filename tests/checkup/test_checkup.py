"""A healthy model is proved; each broken twin of the engine is found, by the part it belongs to.

The law part fails a healthy decoder with probability 3e-4 for an unknown seed; seeds are fixed.
"""

import json
from dataclasses import replace

import pytest
import torch
from checkpoints import random_model, save_checkpoint

from selfspec_cli.checkup.cache import prove_cache
from selfspec_cli.checkup.greedy import plain_outputs, prove_greedy, prove_library
from selfspec_cli.checkup.records import GPU_UNTESTED, CheckupReport, Listed, Part, with_differences
from selfspec_cli.checkup.rows import prove_batch
from selfspec_cli.checkup.run import run
from selfspec_cli.checkup.subject import library_outputs, make_subject
from selfspec_cli.engine import policies
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.engine.exactness import Difference
from selfspec_cli.engine.families import family_of
from selfspec_cli.engine.laws import Processor
from selfspec_cli.engine.load import LoadOptions
from selfspec_cli.engine.policies import GreedyPolicy
from selfspec_cli.engine.verify import Verdict, draw
from selfspec_cli.engine.view import LayerView
from selfspec_cli.errors import FamilyError, ModelError

ALL = ("self_check", "engine", "cache", "greedy", "library", "batch", "law")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A gain of 8: laws broad enough for a histogram, an exit that differs from the target."""
    model = random_model("llama", gain=8.0, num_hidden_layers=2)
    return save_checkpoint(model, tmp_path_factory.mktemp("verify") / "llama")


@pytest.fixture
def check(folder):
    def made(**options):
        return run(LoadOptions(model=str(folder), device="cpu", **options))

    return made


def tried(*names, gain=8.0, dtype=torch.float32) -> dict[str, Part]:
    """These parts alone, on the same model."""
    model = random_model("llama", gain=gain, num_hidden_layers=2).to(dtype)
    subject = make_subject(LayerView(model, family_of("llama")), seed=0)
    library = library_outputs(subject, lambda: None) if "library" in names else {}
    plain = plain_outputs(subject)
    makers = {
        "cache": lambda: prove_cache(subject, lambda: None),
        "greedy": lambda: prove_greedy(subject, plain, lambda: None),
        "library": lambda: prove_library(subject, plain, library),
        "batch": lambda: prove_batch(subject, plain, lambda: None),
    }
    return {name: makers[name]() for name in names}


def outcomes(parts: dict[str, Part]) -> dict[str, str]:
    return {name: part.outcome for name, part in parts.items()}


def differing(report: CheckupReport) -> list[str]:
    return [part.name for part in report.parts if part.outcome == "differs"]


def faults(report: CheckupReport, name: str) -> str:
    return "\n".join(next(part for part in report.parts if part.name == name).faults)


def test_a_healthy_model_is_proved_part_by_part(check):
    report = check()
    told = {part.name: (part.outcome, part.faults, part.refusal) for part in report.parts}
    assert tuple(told) == ALL
    assert report.outcome == "proved", told
    assert report.exit_code == 0
    found = {part.name: part for part in report.parts}
    assert 0 < found["self_check"].value < found["self_check"].tolerance == 1e-4
    assert found["cache"].value == 0.0, "rolled-back positions reach the logits"
    assert found["law"].value >= found["law"].tolerance > 0
    assert "every one at L = N" in found["greedy"].text
    assert report.num_ties == 0
    assert all(part.cases > 0 and part.seconds > 0 for part in report.parts)
    again = json.loads(json.dumps(report.to_document(), allow_nan=False))
    assert again["outcome"] == "proved"
    assert [part["name"] for part in again["parts"]] == list(ALL)


def resamples_from_p(tokens, draft, target, uniforms):
    """Twin: after a rejection it draws from p instead of max(0, p - q)."""
    rows = torch.arange(len(tokens))
    rejected = (uniforms[:-1] * draft[rows, tokens] >= target[rows, tokens]).nonzero()
    a = int(rejected[0, 0]) if len(rejected) else len(tokens)
    kind = "bonus" if a == len(tokens) else "recovered"
    return Verdict(a, draw(target[a], float(uniforms[-1])), kind)


def test_a_verifier_that_resamples_from_p_breaks_the_law_alone(check, monkeypatch):
    monkeypatch.setattr(policies, "verify", resamples_from_p)
    report = check()
    assert differing(report) == ["law"], report.parts
    assert report.exit_code == 1
    assert "tokens that replaced a draft" in faults(report, "law")
    assert "p-value" in faults(report, "law")


@pytest.mark.parametrize("off", [-1, 1])
def test_a_rollback_off_by_one_is_a_fault_of_the_cache(monkeypatch, off):
    def twin(self):
        held = len(self.job.prompt) + len(self.output) - 1 + off
        self.cache.rollback([min(held, *(n for (n,) in self.cache.lengths))])

    monkeypatch.setattr(Decoder, "_roll_back", twin)
    parts = tried("cache", "greedy")
    assert outcomes(parts) == {"cache": "differs", "greedy": "differs"}
    assert "committed - 1 is" in parts["cache"].faults[0]


def test_a_missing_norm_fails_the_self_check_and_nothing_else_is_called_proved(check, monkeypatch):
    monkeypatch.setattr(LayerView, "head", lambda self, hidden: self._head(hidden).float())
    report = check()
    assert differing(report) == ["self_check"]
    assert report.exit_code == 1
    assert "exit layer" in faults(report, "self_check")
    assert "tolerance 0.0001" in faults(report, "self_check")
    assert {part.outcome for part in report.parts[1:]} == {"refused"}


def test_a_draft_step_run_twice_is_seen_by_counting_calls(monkeypatch):
    """Its tokens and its cache are right, so only the count can tell."""
    real = Decoder._shallow

    def twin(self, token, exit_layer, i):
        before = [list(lengths) for lengths in self.cache.lengths]
        real(self, token, exit_layer, i)
        self.cache.lengths = before
        return real(self, token, exit_layer, i)

    monkeypatch.setattr(Decoder, "_shallow", twin)
    parts = tried("cache", "greedy", "batch")
    assert outcomes(parts) == {"cache": "differs", "greedy": "proved", "batch": "proved"}
    said = "\n".join(parts["cache"].faults)
    assert "layer 0 was called 4 times with 4 positions, 2 times with 2 are right" in said


def test_a_verdict_that_accepts_all_is_a_greedy_fault_with_position_and_gap(monkeypatch):
    def twin(drafts, target):
        return Verdict(len(drafts), int(target[-1]), "bonus")

    monkeypatch.setattr(policies, "verify_greedy", twin)
    parts = tried("greedy", "library")
    assert outcomes(parts) == {"greedy": "differs", "library": "proved"}
    assert parts["greedy"].value > parts["greedy"].tolerance
    assert "output position" in parts["greedy"].faults[0]
    assert "top-2 gap" in parts["greedy"].faults[0]


def test_rows_one_position_short_are_a_fault_of_the_batch_alone(monkeypatch):
    real = BatchDecoder.commit

    def twin(self, running, tokens):
        counts = real(self, running, tokens)
        self.cache.rollback([n - 1 for n in self.cache.lengths[0]])
        return counts

    monkeypatch.setattr(BatchDecoder, "commit", twin)
    assert outcomes(tried("batch", "greedy")) == {"batch": "differs", "greedy": "proved"}


def test_plain_decoding_that_is_wrong_everywhere_differs_from_the_library(monkeypatch):
    """Twin: takes the second best token, in rounds and plainly alike."""
    monkeypatch.setattr(
        Processor,
        "greedy",
        lambda self, logits, output, drafted=(): logits.topk(2, dim=-1).indices[..., 1],
    )
    parts = tried("library", "greedy")
    assert outcomes(parts) == {"library": "differs", "greedy": "proved"}
    assert "plain decoding and generate, prompt of 1" in parts["library"].faults[0]


def test_a_cache_larger_than_asked_for_is_not_a_refusal(monkeypatch):
    real = LayerView.new_cache
    monkeypatch.setattr(
        LayerView,
        "new_cache",
        lambda self, *, rows=1, capacity: real(self, rows=rows, capacity=capacity + 8),
    )
    parts = tried("cache", "greedy")
    assert outcomes(parts) == {"cache": "differs", "greedy": "proved"}
    assert "held an output that takes" in parts["cache"].faults[0]


def test_a_decoder_that_stops_is_a_finding_not_a_crash(check, monkeypatch):
    def twin(self):
        raise RuntimeError("pointers are not all 7")

    monkeypatch.setattr(Decoder, "ar_step", twin)
    report = check()
    assert "greedy" in differing(report)
    assert "pointers are not all 7" in faults(report, "greedy")
    assert next(part for part in report.parts if part.name == "law").outcome == "refused"


def _tie(gap: float) -> Listed:
    found = Difference(position=3, plain_token=5, speculative_token=7, top2_gap=gap, tolerance=0.5)
    return Listed(where="L = 2, k = 4", difference=found)


@pytest.mark.parametrize(("gap", "outcome"), [(0.25, "proved"), (0.5, "differs"), (2, "differs")])
def test_a06_a_gap_under_the_tolerance_is_listed_and_one_over_it_differs(gap, outcome):
    part = with_differences(Part(name="greedy", title="t", cases=9, tolerance=0.5), [_tie(gap)])
    assert part.outcome == outcome, f"gap {gap} at tolerance 0.5"
    assert part.value == gap
    assert len(part.ties) + len(part.faults) == 1
    assert "plain 5, speculative 7" in str(_tie(gap))


def test_ties_in_most_outputs_prove_nothing():
    """Where all logits lie within the tolerance, it would excuse any decoder."""
    part = with_differences(
        Part(name="greedy", title="t", cases=3, tolerance=0.5), [_tie(0.1), _tie(0.2)]
    )
    assert part.outcome == "refused"
    assert "2 of 3 outputs part" in part.refusal


@pytest.mark.parametrize(("size", "outcome"), [(0.05, "proved"), (6.0, "differs")])
def test_a06_bfloat16_lists_what_rounding_turns_and_refuses_more(monkeypatch, size, outcome):
    """Twin: a verdict's logits are off by up to `size` / 2, as another kernel's rounding is."""
    real = GreedyPolicy.settle

    def twin(self, logits, output, drafted):
        generator = torch.Generator().manual_seed(len(output))
        noise = torch.rand(logits.shape, generator=generator) - 0.5
        return real(self, logits + size * noise, output, drafted)

    monkeypatch.setattr(GreedyPolicy, "settle", twin)
    found = tried("greedy", gain=24.0, dtype=torch.bfloat16)["greedy"]
    assert found.outcome == outcome, (found.value, found.faults)
    assert len(found.ties) > 0, "the case needs near-ties"
    assert bool(found.faults) == (outcome == "differs")
    assert (found.value > found.tolerance) == (outcome == "differs"), found.value
    assert "every one at L = N" not in found.text
    for tie in found.to_document()["numeric_ties"]:
        assert tie["top2_gap"] < tie["tolerance"] == 0.5
        assert tie["plain_token"] != tie["other_token"]
        assert tie["position"] >= 1


def test_only_a_gpu_run_says_that_a_gpu_was_tested():
    blank = CheckupReport(
        model="m", family="llama", num_layers=2, dtype="float32", device="cpu", on_gpu=False,
        engine="eager", notices=(), seed=0, parts=(),
    )  # fmt: skip
    assert blank.gpu_line == GPU_UNTESTED
    assert blank.gpu_line.startswith("GPU: untested on GPU (no run of selfspec has decoded on one")
    there = replace(blank, on_gpu=True, device="cuda:0 Some GPU")
    assert "tested on this machine's GPU by this run (cuda:0 Some GPU)" in there.gpu_line
    assert "untested" not in there.gpu_line


def test_nothing_tried_is_never_proved():
    assert Part(name="law", title="t").outcome == "refused"
    assert Part(name="law", title="t", cases=3, refusal="no room").outcome == "refused"


def test_a_model_with_few_positions_is_tried_with_what_fits(tmp_path):
    model = random_model("llama", gain=4.0, num_hidden_layers=2, max_position_embeddings=16)
    report = run(LoadOptions(model=str(save_checkpoint(model, tmp_path / "m")), device="cpu"))
    assert report.outcome == "proved", [(p.name, p.faults, p.refusal) for p in report.parts]


def test_a_model_with_no_room_and_a_foreign_family_are_refused(tmp_path):
    model = random_model("llama", num_hidden_layers=2, max_position_embeddings=6)
    with pytest.raises(ModelError, match="6 positions, too few"):
        run(LoadOptions(model=str(save_checkpoint(model, tmp_path / "m")), device="cpu"))
    (tmp_path / "config.json").write_text('{"model_type": "mamba"}', encoding="utf-8")
    with pytest.raises(FamilyError, match="'mamba' is not supported"):
        run(LoadOptions(model=str(tmp_path), device="cpu"))
