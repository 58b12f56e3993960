"""Rows that are refilled: more paths than rows, each observed as if it were alone."""

import numpy as np
import pytest
from replay_helpers import EOS, request, setting_of, view

from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.view import LayerView
from selfspec_cli.replay import stretches
from selfspec_cli.replay.observe import PathJob, observe
from selfspec_cli.replay.stretches import Stretches

EXITS = (1, 3)
FLOORS = (0, 9, 2, 0, 0, 5, 14, 1, 0, 3, 7)  # output tokens after which EOS is certain


def jobs(temperatures=(0.7,), budget=12):
    """Paths whose lengths differ: some end with their first token, one by its budget."""
    wanted = [
        request(i, (5 + i, 9, 11), budget, min_tokens=floor, logit_bias=((EOS, 60.0),))
        for i, floor in enumerate(FLOORS)
    ]
    return [
        PathJob(request=one, temperature=t, source="regenerated")
        for one in wanted
        for t in temperatures
    ]


def differences(paths, others):
    """Paths whose tokens, end or scores are not those of `others`."""
    found = []
    for a, b in zip(paths, others, strict=True):
        assert a.job == b.job
        same = a.tokens == b.tokens and a.finish == b.finish
        if same:
            x, y = a.scores, b.scores
            same = np.allclose(x.accept_prob, y.accept_prob, atol=1e-5) and np.allclose(
                x.accept_given_path, y.accept_given_path, atol=1e-5, equal_nan=True
            )
            same = same and np.array_equal(x.is_argmax, y.is_argmax)
        if not same:
            found.append(a.job.path_id)
    return found


@pytest.fixture(scope="module")
def alone():
    setting = setting_of(view())
    return [path for job in jobs() for path in observe(setting, [job], EXITS)]


@pytest.mark.parametrize("rows", [1, 2, 3, 8, 40])
def test_a_path_is_the_same_however_many_rows_there_are(alone, rows):
    paths = observe(setting_of(view()), jobs(), EXITS, rows=rows)
    assert [len(p.tokens) for p in paths] == [min(12, floor + 1) for floor in FLOORS]
    assert differences(paths, alone) == []


@pytest.mark.parametrize("size", [1, 4000])
def test_short_stretches_change_nothing(alone, monkeypatch, size):
    """Large states leave room for one position, or a few, before they must be scored."""
    monkeypatch.setattr(stretches, "STATE_BYTES", size)
    paths = observe(setting_of(view()), jobs(), EXITS, rows=3)
    assert differences(paths, alone) == []


def test_twin_rows_that_share_a_slot_are_noticed(alone, monkeypatch):
    """Broken twin: every job writes where the first one does."""
    real = Stretches.begin

    def begin(self, job):
        real(self, job)
        self._slots[job] = 0

    monkeypatch.setattr(Stretches, "begin", begin)
    wrong = differences(observe(setting_of(view()), jobs(), EXITS, rows=3), alone)
    assert len(wrong) >= 3, f"only {wrong} differ"


def test_refilled_rows_need_fewer_steps(monkeypatch):
    """Rows in use a step: the work is the same, so fewer steps are fuller ones."""
    steps = []
    real = BatchDecoder.step

    def step(self, tap=None):
        steps.append(len(self.running))
        real(self, tap)

    monkeypatch.setattr(BatchDecoder, "step", step)
    setting, wanted = setting_of(view()), jobs()
    for at in range(0, len(wanted), 4):
        observe(setting, wanted[at : at + 4], EXITS)
    apart, in_use = len(steps), sum(steps)
    steps.clear()
    observe(setting, wanted, EXITS, rows=4)
    assert sum(steps) == in_use, f"{sum(steps)} tokens against {in_use}"
    assert len(steps) <= 0.75 * apart, f"{len(steps)} steps against {apart} of batches apart"


def test_paths_of_one_prompt_begin_together(monkeypatch):
    """Two temperatures of a request share the run of its prompt, in refilled rows too."""
    prompts = []
    real = LayerView.run

    def run(self, hidden, cache, start, stop, tap=None):
        if hidden.shape[1] > 1:
            prompts.append(hidden.shape[1])
        return real(self, hidden, cache, start, stop, tap)

    monkeypatch.setattr(LayerView, "run", run)
    wanted = jobs((0.0, 0.7))
    paths = observe(setting_of(view()), wanted, EXITS, rows=4)
    assert len(paths) == 2 * len(FLOORS)
    assert len(prompts) == len(FLOORS), f"{len(prompts)} runs of {len(FLOORS)} prompts"
    prompts.clear()
    observe(setting_of(view()), wanted, EXITS, rows=3)  # an odd number of rows: still all begin
    assert len(FLOORS) <= len(prompts) <= 2 * len(FLOORS)


def test_progress_counts_every_token_but_the_prompts_own():
    told = []
    paths = observe(setting_of(view()), jobs(), EXITS, told.append, rows=3)
    assert sum(told) == sum(len(path.tokens) - 1 for path in paths)
