"""The library's own arms: at temperature 0, and by the same law above it where asked for."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from bench_helpers import OWN, RIVALS, bench, document, rows
from checkpoints import random_model, save_checkpoint

from selfspec_cli.bench.rivals import RivalJob, Rivals
from selfspec_cli.cost.clock import Clock
from selfspec_cli.engine.load import LoadedModel, LoadOptions, load_model
from selfspec_cli.records import PreparedRequest, Sampling

REQUEST = PreparedRequest(
    request_id="r",
    group_id="r",
    task="chat",
    prompt_token_ids=(5, 6, 7, 8, 9, 5, 6, 7),
    completion_token_ids=None,
    finish="unknown",
    temperature=None,
    sampling=Sampling(),
    max_tokens=20,
    stop=(),
    content_hash="r",
    source="t:1",
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory) -> LoadedModel:
    folder = save_checkpoint(random_model("llama"), tmp_path_factory.mktemp("rivals") / "llama")
    return load_model(LoadOptions(model=str(folder), engine="eager"), tokenizer=object())


def decoded(rivals: Rivals, arm: str, temperature: float, *, seed: int = 0, **law: object):
    request = replace(REQUEST, sampling=Sampling(**law))
    job = RivalJob(arm=arm, request=request, temperature=temperature, exit_layer=2, seed=seed)
    found = rivals.run(job, Clock())
    assert found is not None, rivals.refused
    return found.tokens


@pytest.mark.parametrize("arm", RIVALS)
def test_sampling_has_the_requests_law_and_coins_of_its_own(loaded, arm):
    rivals = Rivals(loaded, sampled=True)
    greedy = decoded(rivals, "generate", 0.0)
    assert decoded(rivals, arm, 0.7, top_k=1) == greedy, "the one token left is the greedy one"
    before = torch.get_rng_state()
    own = decoded(rivals, arm, 1.5, seed=1)
    assert own == decoded(rivals, arm, 1.5, seed=1), "a seed gives a text"
    # Hot and without a cut, 20 tokens alike by chance: no.
    assert own != decoded(rivals, arm, 1.5, seed=2), "the seed decides nothing"
    assert own != greedy, "nothing was drawn"
    assert torch.equal(before, torch.get_rng_state()), "the process' generator was moved"


def test_sampled_requests_are_taken_only_where_asked_for(loaded):
    asked, not_asked = Rivals(loaded, sampled=True), Rivals(loaded)
    assert (asked.supports(REQUEST, 0.7), not_asked.supports(REQUEST, 0.7)) == (True, False)
    assert (asked.supports(REQUEST, 0.0), not_asked.supports(REQUEST, 0.0)) == (True, True)
    penalised = replace(REQUEST, sampling=Sampling(repetition_penalty=1.2))
    assert not asked.supports(penalised, 0.7)


@pytest.mark.parametrize(("at", "temperatures"), [("all", {0.0, 0.7}), ("none", set())])
def test_a_bench_decodes_them_at_the_temperatures_asked_for(
    calibrated_run: Path, model: Path, trace: Path, tmp_path: Path, at, temperatures
):
    flags = ("-o", tmp_path, "--requests", 1, "--rivals", at)
    assert bench(calibrated_run, model, trace, *flags) == 0
    table = rows(tmp_path)
    library = table[table["arm"].isin(RIVALS)]
    assert set(library["temperature"]) == temperatures, f"at {set(library['temperature'])}"
    for key, own in table.groupby(["request_id", "temperature"]):
        wanted = {*OWN, *(RIVALS if key[1] in temperatures else ())}
        assert set(own["arm"]) == wanted, f"{key} has arms {sorted(own['arm'])}"
    assert library["exact"].isna().all()
    assert not any("are not decoded with the library" in n for n in document(tmp_path)["notes"])


def test_an_unknown_choice_is_refused(calibrated_run, model, trace, tmp_path, capsys):
    flags = ("-o", tmp_path / "out", "--rivals", "sampled")
    assert bench(calibrated_run, model, trace, *flags) == 2
    said = capsys.readouterr().err
    assert "--rivals: unknown requests 'sampled'" in said, said
    assert "greedy, all, none" in said
