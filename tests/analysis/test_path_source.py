"""The path-source test: accepts samples of the law, refuses other laws, admits ignorance."""

import numpy as np
import pandas as pd
import pytest

from selfspec_cli.analysis.path_source import check_by_bucket, check_path_source

LOGITS = np.array([2.0, 1.0, 0.5, 0.0, -1.0, -2.0])


def law(temperature):
    weights = np.exp(LOGITS / temperature)
    return weights / weights.sum()


def paths_of(drawn_at, read_at, tokens, seed, rows=10):
    """Sums of paths drawn at one temperature and scored at another."""
    rng = np.random.default_rng(seed)
    p = law(read_at)
    entropy = -(p * np.log(p)).sum()
    varentropy = (p * np.log(p) ** 2).sum() - entropy**2
    each = tokens // rows
    frames = []
    for i in range(rows):
        x = rng.choice(len(p), size=each, p=law(drawn_at))
        frames.append(
            {
                "path_id": f"p{i}",
                "request_id": f"r{i}",
                "temperature": read_at,
                "source": "recorded",
                "completion_tokens": each,
                "surprisal": -np.log(p[x]).sum(),
                "entropy": entropy * each,
                "varentropy": varentropy * each,
                "num_zero_prob": 0,
                "num_outside_truncation": 0,
                "num_argmax": int((x == 0).sum()),
            }
        )
    return pd.DataFrame(frames)


def test_text_of_the_law_is_accepted():
    """z is standard normal: |z| > 3 in 0.3 % of buckets, and the excess must be large too."""
    check = check_path_source(paths_of(0.7, 0.7, 20_000, seed=1), 0.7)
    assert check.verdict == "recorded ok", check
    assert abs(check.z) < 3


@pytest.mark.parametrize("drawn_at", [0.4, 1.0])
def test_text_of_another_temperature_fails(drawn_at):
    check = check_path_source(paths_of(drawn_at, 0.7, 20_000, seed=2), 0.7)
    assert check.verdict == "failed", check
    assert "nats a token" in check.reason
    assert (check.excess > 0) == (drawn_at > 0.7)


def test_significant_but_tiny_difference_is_accepted():
    """Half a million tokens find T = 0.71 significant; 0.02 nats a token do not care."""
    check = check_path_source(paths_of(0.71, 0.7, 500_000, seed=3), 0.7)
    assert check.verdict == "recorded ok", check
    assert abs(check.z) > 3, "the difference should be significant here"


def test_large_but_insignificant_difference_is_accepted():
    """0.03 nats a token over 1000 tokens of a wide law are 1.3 standard errors: chance."""
    paths = paths_of(0.7, 0.7, 1000, seed=1).assign(surprisal=103.0, entropy=100.0, varentropy=50.0)
    check = check_path_source(paths, 0.7)
    assert (check.excess, check.z) == pytest.approx((0.03, 30 / np.sqrt(500)))
    assert check.verdict == "recorded ok", check


def test_few_tokens_are_unknown():
    check = check_path_source(paths_of(1.0, 0.7, 990, seed=4), 0.7)
    assert check.verdict == "unknown"
    assert "1000 needed" in check.reason


@pytest.mark.parametrize(("zeros", "verdict"), [(20, "recorded ok"), (21, "failed")])
def test_impossible_tokens_fail_above_one_in_a_thousand(zeros, verdict):
    paths = paths_of(0.7, 0.7, 20_000, seed=1)
    paths.loc[0, "num_zero_prob"] = zeros
    assert check_path_source(paths, 0.7).verdict == verdict


def test_one_token_outside_the_requests_own_truncation_fails():
    """No sampler with that top-p can have drawn it, however long the bucket."""
    paths = paths_of(0.7, 0.7, 500_000, seed=1)
    paths.loc[0, ["num_zero_prob", "num_outside_truncation"]] = 1
    check = check_path_source(paths, 0.7)
    assert check.verdict == "failed", check
    assert "rule out 1 of 500000 tokens" in check.reason


@pytest.mark.parametrize(("misses", "verdict"), [(10, "recorded ok"), (11, "failed")])
def test_greedy_bucket_fails_above_one_percent_of_misses(misses, verdict):
    paths = paths_of(0.7, 0.7, 1000, seed=1).assign(
        num_argmax=100, surprisal=np.nan, entropy=np.nan, varentropy=np.nan
    )
    paths.loc[0, "num_argmax"] = 100 - misses
    check = check_path_source(paths, 0.0)
    assert check.verdict == verdict, check


def test_law_without_variance_accepts_its_only_text():
    paths = paths_of(0.7, 0.7, 1000, seed=1).assign(surprisal=0.0, entropy=0.0, varentropy=0.0)
    check = check_path_source(paths, 0.7)
    assert (check.verdict, check.z) == ("recorded ok", None)


def test_buckets_are_tested_apart_and_only_recorded_text():
    good = paths_of(0.7, 0.7, 5000, seed=1)
    bad = paths_of(1.0, 0.7, 5000, seed=2).assign(request_id=[f"b{i}" for i in range(10)])
    made = bad.assign(source="regenerated", request_id=[f"m{i}" for i in range(10)])
    requests = pd.DataFrame(
        {
            "request_id": [*good["request_id"], *bad["request_id"], *made["request_id"]],
            "task": ["chat"] * 10 + ["code"] * 10 + ["chat"] * 10,
        }
    )
    table = check_by_bucket(pd.concat([good, bad, made]), requests).set_index("task")
    assert table["verdict"].to_dict() == {"chat": "recorded ok", "code": "failed"}
    assert table["num_requests"].to_dict() == {"chat": 10, "code": 10}


def test_no_recorded_path_gives_an_empty_table():
    made = paths_of(0.7, 0.7, 1000, seed=1).assign(source="regenerated")
    requests = pd.DataFrame({"request_id": made["request_id"], "task": "chat"})
    assert len(check_by_bucket(made, requests)) == 0
