"""The path-source test on text a model really wrote: whose text is it, and under which law?

40 requests write 32 tokens each at T = 0.7. Read back by the same model at the same temperature the
bucket passes; every way in which a log may not be what it says fails, but for a cut completion,
which is a sample too. Seeded; at other seeds true text fails in at most 0.3 % of buckets.
"""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from checkpoints import random_model
from replay_helpers import requests, setting_of, view, view_of

from selfspec_cli.analysis.path_source import check_by_bucket
from selfspec_cli.calibrate.paths_table import paths_frame, shard_frame
from selfspec_cli.replay.observe import PathJob, observe

TEMPERATURE = 0.7


@pytest.fixture(scope="module")
def setting():
    return setting_of(view("llama"))


def write(setting, temperature=TEMPERATURE, count=40, budget=32, **sampling):
    """Requests with the text that this model wrote for them."""
    wanted = requests(count, budget, **sampling)
    jobs = [PathJob(request=r, temperature=temperature, source="regenerated") for r in wanted]
    return [
        replace(path.job.request, completion_token_ids=path.tokens, finish=path.finish)
        for path in observe(setting, jobs, (2,))
    ]


def paths_of(setting, logged, temperature=TEMPERATURE):
    jobs = [PathJob(request=r, temperature=temperature, source="recorded") for r in logged]
    return paths_frame(shard_frame(observe(setting, jobs, (2,))))


def read(setting, logged, temperature=TEMPERATURE):
    """Verdict of the bucket, read by `setting`'s model."""
    tasks = pd.DataFrame({"request_id": [r.request_id for r in logged], "task": "t"})
    (check,) = check_by_bucket(paths_of(setting, logged, temperature), tasks).to_dict("records")
    assert check["num_requests"] == len(logged)
    return check


@pytest.fixture(scope="module")
def logged(setting):
    return write(setting)


@pytest.mark.parametrize(
    "sampling",
    [{}, {"top_p": 0.9, "top_k": 40}, {"repetition_penalty": 1.3, "min_tokens": 5}],
    ids=["plain", "truncated", "penalised"],
)
def test_the_models_own_text_passes(setting, sampling):
    check = read(setting, write(setting, **sampling))
    assert check["verdict"] == "recorded ok", check
    assert abs(check["z"]) < 3, check


def test_greedy_text_passes_at_zero_and_nowhere_else(setting):
    logged = write(setting, temperature=0.0)
    assert read(setting, logged, 0.0)["verdict"] == "recorded ok"
    other = read(setting, logged, TEMPERATURE)
    assert other["verdict"] == "failed", other
    assert other["excess"] < -0.02, other
    assert read(setting, write(setting), 0.0)["verdict"] == "failed"


@pytest.mark.parametrize(("wrote", "sign"), [(0.5, -1), (1.0, 1)])
def test_text_of_another_temperature_fails(setting, wrote, sign):
    check = read(setting, write(setting, temperature=wrote))
    assert check["verdict"] == "failed", check
    assert sign * check["excess"] > 0.02, check


def test_text_of_another_model_fails(logged):
    other = setting_of(view_of(random_model("llama", seed=2)))
    check = read(other, logged)
    assert check["verdict"] == "failed", check


def test_text_of_another_template_fails(setting, logged):
    """The log's prompts lack what the template puts before the answer."""
    told = [replace(r, prompt_token_ids=(*r.prompt_token_ids, 9, 10, 11)) for r in logged]
    check = read(setting, told)
    assert check["verdict"] == "failed", check


def test_text_of_a_cut_prompt_fails(setting, logged):
    told = [replace(r, prompt_token_ids=r.prompt_token_ids[2:]) for r in logged]
    check = read(setting, told)
    assert check["verdict"] == "failed", check


def test_a_cut_completion_passes_because_a_prefix_is_a_sample(setting, logged):
    told = [replace(r, completion_token_ids=r.completion_token_ids[:26]) for r in logged]
    check = read(setting, told)
    assert check["num_tokens"] >= 1000, "the log must be long enough to tell"
    assert check["verdict"] == "recorded ok", check


def test_text_without_the_top_p_it_is_said_to_have_fails(setting):
    """Drawn from the whole law, logged as top-p 0.8: some tokens cannot have been drawn so."""
    told = [replace(r, sampling=replace(r.sampling, top_p=0.8)) for r in write(setting)]
    check = read(setting, told)
    assert check["verdict"] == "failed", check
    assert "top-k or top-p rule out" in check["reason"]


def test_a_short_log_is_not_judged(setting, logged):
    check = read(setting, logged[:20])
    assert check["verdict"] == "unknown", check


def test_the_z_of_each_path_is_shown_and_standard_normal(setting, logged):
    """40 independent z of mean 0 and sd 1: their mean is beyond 4 / sqrt(40) in 6e-5 of cases."""
    z = paths_of(setting, logged)["path_z"]
    assert z.notna().all()
    assert abs(z.mean()) < 4 / np.sqrt(40), f"mean {z.mean():.2f}"
    assert 0.5 < z.std() < 1.6, f"sd {z.std():.2f}"
    assert paths_of(setting, write(setting, temperature=0.0), 0.0)["path_z"].isna().all()
