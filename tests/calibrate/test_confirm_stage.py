"""From shard rows back to the paths that are decoded again."""

import numpy as np
import pandas as pd

from selfspec_cli.calibrate.confirm_stage import confirm_paths
from selfspec_cli.calibrate.paths_table import shard_frame
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.replay.observe import ObservedPath, PathJob
from selfspec_cli.replay.score import Scores
from selfspec_cli.storage import read_table, write_table

EXITS = (2, 5)
N = 6  # output tokens


def observed(number):
    """A path whose every score tells its exit and position."""
    one = PreparedRequest(
        request_id=f"r{number}", group_id="g", task="t", prompt_token_ids=(4, 5, 6),
        completion_token_ids=None, finish="unknown", temperature=None, sampling=Sampling(),
        max_tokens=9, stop=(), content_hash="", source="",
    )  # fmt: skip
    given = (np.arange(N) + np.array([[0], [10]]) + 100 * number).astype(np.float32) / 1000
    nats = np.ones(N, dtype=np.float32)
    scores = Scores(
        accept_given_path=given, accept_prob=given / 2, is_argmax=given > 0.005, surprisal=nats,
        entropy=nats, varentropy=nats, zero_prob=np.zeros(N, bool),
        outside_truncation=np.zeros(N, bool), path_is_argmax=np.ones(N, bool),
    )  # fmt: skip
    job = PathJob(request=one, temperature=0.7, source="regenerated")
    tokens = tuple(range(number, number + N))
    return ObservedPath(job=job, tokens=tokens, finish="eos", scores=scores)


def test_coins_tokens_and_budget_come_back_at_their_positions(tmp_path):
    """Through a shard on disk: r of exit and position t stands at [exit][t], entry 0 is unused."""
    paths = [observed(number) for number in (1, 2)]
    write_table(shard_frame(paths), tmp_path / "shard.parquet")
    shards = read_table(tmp_path / "shard.parquet")
    wanted = ["r2|T=0.7", "r1|T=0.7"]
    found = confirm_paths(shards, [path.job.request for path in paths], wanted, EXITS)
    assert [path.path_id for path in found] == wanted
    for made, source in zip(found, reversed(paths), strict=True):
        assert made.tokens == source.tokens
        assert made.budget == 9
        assert made.request is source.job.request
        for row, exit_layer in enumerate(EXITS):
            want = source.scores.accept_given_path[row, 1:]
            assert np.allclose(made.accept_given_path[exit_layer][1:], want, atol=1e-7), exit_layer
            assert len(made.accept_given_path[exit_layer]) == N


def test_no_path_wanted_is_no_path():
    assert confirm_paths(pd.DataFrame({"path_id": ["a"]}), [], [], EXITS) == []
