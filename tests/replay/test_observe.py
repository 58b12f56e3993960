"""Observed acceptance against laws computed the slow way, and against the decoder's own."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from replay_helpers import EOS, request, requests, setting_of, view

from selfspec_cli.calibrate.paths_table import observations_frame, paths_frame, shard_frame
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.engine.policies import SampledPolicy
from selfspec_cli.engine.selfcheck import truncated_model
from selfspec_cli.replay.observe import PathJob, observe

EXITS = (1, 2, 3)
ACCEPTANCE = ("accept_given_path", "accept_prob")
NAMES = (*ACCEPTANCE, "surprisal", "entropy", "varentropy")
SAMPLINGS = {
    "plain": {},
    "truncated": {"top_p": 0.9, "top_k": 40},
    "penalised": {
        "repetition_penalty": 1.3,
        "frequency_penalty": 0.4,
        "presence_penalty": 0.2,
        "min_tokens": 5,
        "logit_bias": ((7, 2.0),),
    },
}


def regenerate(setting, wanted, temperature=0.7):
    jobs = [PathJob(request=r, temperature=temperature, source="regenerated") for r in wanted]
    return observe(setting, jobs, EXITS)


def recorded(setting, one, tokens, temperature=0.7, exits=EXITS):
    told = replace(one, completion_token_ids=tuple(tokens))
    job = PathJob(request=told, temperature=temperature, source="recorded")
    return observe(setting, [job], exits)[0]


def furthest(a, b, names=NAMES):
    """Largest difference of two paths' scores, relative above 1; missing must be so in both."""
    worst = 0.0
    for name in names:
        x, y = getattr(a.scores, name), getattr(b.scores, name)
        assert np.array_equal(np.isnan(x), np.isnan(y)), f"{name}: {x} against {y}"
        gap = np.abs(x - y) / np.maximum(1.0, np.abs(x))
        worst = max(worst, float(np.nanmax(gap, initial=0.0)))
    return worst


def slow_laws(setting, path, exit_layer):
    """Law [n, V] of an exit (4 is the target) from the library's own forward, without a cache."""
    laws = setting.laws(path.job.request, path.job.temperature)
    processor = laws.target if exit_layer == 4 else laws.draft
    model = truncated_model(setting.loaded.view, exit_layer)
    prompt, rows = list(path.job.request.prompt_token_ids), []
    for t in range(len(path.tokens)):
        ids = torch.tensor([[*prompt, *path.tokens[:t]]])
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[0, -1:].float()
        rows.append(processor.laws(logits, path.tokens[:t]))
    return torch.cat(rows).double()


@pytest.mark.parametrize("family", ["llama", "gpt2"])
@pytest.mark.parametrize("kind", SAMPLINGS)
def test_a_recorded_path_scores_like_the_regenerated_one(family, kind):
    setting = setting_of(view(family))
    for path in regenerate(setting, requests(6, 20, **SAMPLINGS[kind])):
        again = recorded(setting, path.job.request, path.tokens)
        gap, other = furthest(path, again, ACCEPTANCE), furthest(path, again)
        assert gap <= 1e-5, f"{path.job.path_id}: acceptance differs by {gap}"
        assert other <= 3e-5, f"{path.job.path_id}: sums of nats differ by {other}"


@pytest.mark.parametrize("kind", SAMPLINGS)
@pytest.mark.parametrize("truncation", ["same", "none"])
def test_scores_are_those_of_the_librarys_own_logits(kind, truncation):
    """r, beta, entropy and varentropy from float64 laws of separate forwards of cut checkpoints."""
    setting = setting_of(view("llama"), draft_truncation=truncation)
    for path in regenerate(setting, requests(2, 8, **SAMPLINGS[kind])):
        p = slow_laws(setting, path, 4)
        at = torch.arange(len(path.tokens))
        x = torch.tensor(path.tokens)
        for row, exit_layer in enumerate(EXITS):
            q = slow_laws(setting, path, exit_layer)
            r = (q[at, x] / p[at, x]).clamp(max=1).numpy()
            beta = torch.minimum(p, q).sum(-1).numpy()
            got = path.scores
            assert np.abs(got.accept_given_path[row] - r).max() < 1e-4, f"r at exit {exit_layer}"
            assert np.abs(got.accept_prob[row] - beta).max() < 1e-4, f"beta at exit {exit_layer}"
            agree = (p.argmax(-1) == q.argmax(-1)).numpy()
            assert np.array_equal(got.is_argmax[row], agree)
        log_p = p.clamp(min=1e-300).log()
        entropy = -(p * log_p).sum(-1)
        varentropy = (p * log_p**2).sum(-1) - entropy**2
        assert np.abs(path.scores.surprisal + log_p[at, x].numpy()).max() < 1e-4
        assert np.abs(path.scores.entropy - entropy.numpy()).max() < 1e-4
        assert np.abs(path.scores.varentropy - varentropy.numpy()).max() < 1e-3


def test_penalties_count_the_whole_output_across_stretches():
    """80 tokens are scored in two stretches; the second must know the tokens of the first."""
    setting = setting_of(view("llama"), eos=None)
    (path,) = regenerate(setting, requests(1, 80, repetition_penalty=1.5, frequency_penalty=0.5))
    assert len(path.tokens) == 80
    again = recorded(setting, path.job.request, path.tokens)
    assert furthest(path, again, ACCEPTANCE) <= 1e-5
    p, q = slow_laws(setting, path, 4), slow_laws(setting, path, 2)
    beta = torch.minimum(p, q).sum(-1).numpy()
    gap = np.abs(path.scores.accept_prob[1] - beta)
    assert gap.max() < 1e-4, f"worst at position {gap.argmax()}: {gap.max()}"


def test_an_untruncated_draft_law_spreads_beyond_the_target():
    """With top-p on the target only, q gives every token less: some r fall, none rises."""
    wanted = requests(8, 12, top_p=0.6)
    same = regenerate(setting_of(view()), wanted)
    none = regenerate(setting_of(view(), draft_truncation="none"), wanted)
    assert [p.tokens for p in same] == [p.tokens for p in none], "the target's law must not change"
    fell = 0
    for a, b in zip(same, none, strict=True):
        both = a.scores.accept_given_path > 0
        fell += int((b.scores.accept_prob < a.scores.accept_prob - 1e-3).sum())
        rose = b.scores.accept_given_path[both] - a.scores.accept_given_path[both]
        assert rose.max(initial=0) < 1e-5, f"r rose by {rose.max()}"
    assert fell > 20, f"beta fell at {fell} positions only: the option does nothing"


def test_a_row_of_a_batch_is_the_row_alone():
    setting = setting_of(view())
    wanted = requests(5, 20)
    together = regenerate(setting, wanted)
    for one, path in zip(wanted, together, strict=True):
        (alone,) = regenerate(setting, [one])
        assert alone.tokens == path.tokens, path.job.path_id
        assert furthest(alone, path, ACCEPTANCE) <= 1e-5


def test_rows_that_end_early_keep_their_own_length_and_finish():
    """min length differs by row: EOS is made likely, so rows end apart; a long row goes on."""
    setting = setting_of(view())
    wanted = [
        request(i, (5 + i, 9, 11), 30, min_tokens=floor, logit_bias=((EOS, 60.0),))
        for i, floor in enumerate((0, 3, 7, 40))
    ]
    paths = regenerate(setting, wanted)
    assert [len(path.tokens) for path in paths] == [1, 4, 8, 30]
    assert [path.finish for path in paths] == ["eos", "eos", "eos", "length"]
    for path in paths:
        assert path.scores.accept_prob.shape == (3, len(path.tokens))
        again = recorded(setting, path.job.request, path.tokens)
        assert furthest(path, again, ACCEPTANCE) <= 1e-5


def test_temperature_zero_is_a_one_hot_rule():
    """r = beta = 1 exactly where the two argmax agree, whatever token the path holds."""
    setting = setting_of(view())
    seen = set()
    for path in regenerate(setting, requests(6, 16), temperature=0.0):
        s = path.scores
        assert np.array_equal(s.accept_given_path, s.is_argmax.astype(np.float32))
        assert np.array_equal(s.accept_prob, s.accept_given_path)
        assert bool(s.path_is_argmax.all())
        assert bool(np.isnan(s.surprisal).all())
        seen |= set(np.unique(s.accept_given_path).tolist())
        other = [(token + 1) % 200 + 3 for token in path.tokens]
        strange = recorded(setting, path.job.request, other, temperature=0.0)
        assert not strange.scores.path_is_argmax.all()
        assert not strange.scores.zero_prob.any()
    assert seen == {0.0, 1.0}, f"only {seen} occurred: the test shows nothing"


def test_a_token_of_probability_zero_is_missing_and_counted():
    """Recorded text outside the request's own top-k: r is missing there, never 0 or 1."""
    setting = setting_of(view())
    one = request(0, (5, 9, 11), 12, top_k=1)
    (path,) = regenerate(setting, [one])
    tokens = list(path.tokens)
    tokens[4] = next(token for token in range(3, 260) if token != tokens[4])
    broken = recorded(setting, one, tokens[:6])
    assert np.isnan(broken.scores.accept_given_path[:, 4]).all()
    assert np.isnan(broken.scores.surprisal[4])
    assert broken.scores.zero_prob.tolist() == [False] * 4 + [True] + [
        bool(broken.scores.zero_prob[5])
    ]
    assert not np.isnan(broken.scores.accept_prob).any(), "beta needs no path token"
    rows = paths_frame(shard_frame([broken]))
    assert int(rows["num_zero_prob"].iloc[0]) == int(broken.scores.zero_prob.sum())
    assert np.isfinite(rows["surprisal"].iloc[0])


class Listening(SampledPolicy):
    """Keeps (s, drafted, q [k, V], p [k+1, V]) of every round."""

    def __init__(self, laws, seed, max_draft):
        super().__init__(
            laws.target,
            torch.Generator().manual_seed(seed),
            max_draft=max_draft,
            draft=laws.draft,
        )
        self.heard = []

    def settle(self, logits, output, drafted):
        verdict = super().settle(logits, output, drafted)
        p = self.target.laws(logits, output, drafted)
        q = self._laws[: len(drafted)].clone()
        self.heard.append((len(output), q, p, verdict.num_accepted))
        return verdict


@pytest.mark.parametrize("kind", SAMPLINGS)
def test_teacher_forced_acceptance_is_the_decoders_own(kind):
    """Every law a real round held along its committed prefix, against one pass over the text."""
    setting = setting_of(view(), eos=None)
    checked, exit_layer = 0, 2
    for one in requests(3, 24, **SAMPLINGS[kind]):
        laws = setting.laws(one, 0.7)
        policy = Listening(laws, 3, 4)
        state = Decoder(setting.loaded.view, setting.job(one), policy, max_draft=4)
        state.prefill()
        while state.finish is None:
            state.round(exit_layer, 4)
        seen = recorded(setting, one, state.output, exits=(exit_layer,)).scores
        for start, q, p, accepted in policy.heard:
            for i in range(min(accepted + 1, len(q), len(state.output) - start)):
                x = state.output[start + i]
                beta = float(torch.minimum(p[i], q[i]).sum())
                r = min(1.0, float(q[i, x] / p[i, x]))
                assert abs(beta - seen.accept_prob[0, start + i]) < 1e-5, f"position {start + i}"
                assert abs(r - seen.accept_given_path[0, start + i]) < 1e-4
                checked += 1
    assert checked > 40, f"only {checked} positions compared"


def test_without_the_final_norm_the_scores_are_others():
    """Broken twin: an exit's logits read from the raw residual."""
    raw = copy.copy(view())
    raw._norm = torch.nn.Identity()
    (path,) = regenerate(setting_of(view()), requests(1, 16))
    twin = recorded(setting_of(raw), path.job.request, path.tokens)
    gap = np.abs(path.scores.accept_prob - twin.scores.accept_prob).max()
    assert gap > 0.05, f"beta moved by {gap} only: a missing norm would go unseen"


def test_rows_of_the_run_files_stand_in_position_order():
    """observations.parquet: exits apart, positions from 1; position 0 is prefill's."""
    (path,) = regenerate(setting_of(view()), requests(1, 6))
    n = len(path.tokens)
    rows = observations_frame(shard_frame([path]), EXITS)
    assert rows["position"].tolist() == list(range(1, n)) * 3
    assert rows["exit_layer"].tolist() == [layer for layer in EXITS for _ in range(1, n)]
    want = path.scores.accept_given_path[:, 1:].ravel()
    assert np.array_equal(rows["accept_given_path"].to_numpy(), want)
    assert set(rows["drafter"]) == {"early_exit"}


def test_a_recorded_text_of_unknown_end_has_used_its_budget():
    cut = request(0, (5, 6, 7), 50, completion=(8, 9, 10))
    ended = replace(cut, finish="eos")
    budgets = [
        PathJob(request=one, temperature=0.7, source="recorded").budget for one in (cut, ended)
    ]
    assert budgets == [3, 50]
