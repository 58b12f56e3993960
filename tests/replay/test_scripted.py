"""Scripted replay: the path comes out, the coins decide, and all real work still happens."""

import functools
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoints import random_model
from replay_helpers import EOS, coins_of, request, requests, setting_of, view_of

from selfspec_cli.analysis.walk import walk
from selfspec_cli.engine.decoder import Decoder
from selfspec_cli.replay.confirm import ConfirmPath, confirm_path
from selfspec_cli.replay.decode import Cell, decode
from selfspec_cli.replay.observe import PathJob, observe
from selfspec_cli.replay.scripted import Script, ScriptedPolicy, draw_coins, path_laws
from selfspec_cli.replay.setting import derive_seed

EXITS = (1, 2, 3)
BUDGET = 16
LIMIT = 4.0  # standard errors


class NoClock:
    """Runs the step; tells no time."""

    def span(self, step, repeats=1):
        for _ in range(repeats):
            step()
        return 1.0


@functools.cache
def setting():
    model = random_model("gpt2", vocab_size=32, num_attention_heads=1, gain=16.0)
    return setting_of(view_of(model), seed=2)


def observe_one(one, temperature=1.0, which=None):
    where = which or setting()
    job = PathJob(request=one, temperature=temperature, source="regenerated")
    return observe(where, [job], EXITS)[0]


@pytest.fixture(scope="module")
def path():
    """A path of 16 tokens without EOS."""
    plain = setting_of(setting().loaded.view, eos=None, seed=2)
    return observe_one(requests(1, BUDGET, tokens=(3, 32))[0], which=plain)


def replayer(path, exit_layer, k, kind=ScriptedPolicy):
    """A function seed, coins -> (policy, decoded), on one prefilled state."""
    one = path.job.request
    laws = setting().laws(one, 1.0)
    p = path_laws(setting(), one.prompt_token_ids, path.tokens, laws)
    job = replace(setting().job(one), eos_ids=frozenset())
    state = Decoder(setting().loaded.view, job, setting().policy(one, 1.0), max_draft=k)
    state.prefill()
    state.output[:] = path.tokens[:1]

    def run(seed, accepted):
        script = Script(tokens=path.tokens, accepted=accepted, target_laws=p)
        policy = kind(laws, script, seed, max_draft=k, view=setting().loaded.view)
        return policy, decode(state, policy, Cell(exit_layer, k), NoClock())

    return run


def coins(path, exit_layer, seed, which="accept_given_path"):
    r = getattr(path.scores, which)[EXITS.index(exit_layer)].astype(float)
    return draw_coins([0.0, *r[1:]], seed)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_script_commits_exactly_its_path(path, k, share):
    """Whatever the coins, for none, half and all accepted; the counts follow from the coins."""
    run = replayer(path, 2, k)
    for seed in range(4):
        tossed = draw_coins([share] * BUDGET, seed)
        _, got = run(seed, tossed)
        assert got.tokens == path.tokens
        assert got.num_committed == BUDGET - 1
        assert [r.num_accepted for r in got.rounds] == accepted_by_hand(tossed, k, BUDGET)


def accepted_by_hand(tossed, k, budget):
    """Accepted drafts of each round, walked over the coins."""
    start, found = 1, []
    while start < budget:
        drafted = min(k, budget - start - 1)
        taken = next((i for i in range(drafted) if not tossed[start + i]), drafted)
        found.append(taken)
        start += taken + 1
    return found


def test_every_coin_falls_with_its_own_probability():
    """Share of heads at each position against r_t: 40 positions within 4.5 standard errors.

    False alarm below 40 x 7e-6 = 0.03 %; coins of 0 and 1 never differ.
    """
    r = np.linspace(0.0, 1.0, 40)
    n = 4000
    tossed = np.array([draw_coins(r.tolist(), derive_seed("toss", i)) for i in range(n)])
    errors = np.sqrt(r * (1 - r) / n) + 1e-12
    z = (tossed.mean(axis=0) - r) / errors
    assert np.abs(z).max() < 4.5, f"worst position {np.abs(z).argmax()}: z = {z}"
    assert tossed[:, 0].sum() == 0
    assert tossed[:, -1].all()


def measured_rounds(path, exit_layer, k, draws, which="accept_given_path"):
    run = replayer(path, exit_layer, k)
    return np.array(
        [len(run(i, coins(path, exit_layer, i, which))[1].rounds) for i in range(draws)]
    )


def walked_rounds(path, exit_layer, k):
    return float(walk(coins_of([path], 3), EXITS, (k,)).set_index("exit_layer").rounds[exit_layer])


@pytest.mark.parametrize(("exit_layer", "k"), [(1, 2), (3, 5)])
def test_the_mean_number_of_rounds_is_the_walks(path, exit_layer, k):
    """150 coin draws; false alarm 1e-4 a cell. Drafts beyond a rejection do not matter."""
    rounds = measured_rounds(path, exit_layer, k, 150)
    expected = walked_rounds(path, exit_layer, k)
    z = (rounds.mean() - expected) / (rounds.std(ddof=1) / np.sqrt(len(rounds)))
    assert abs(z) <= LIMIT, f"{rounds.mean()} replayed, {expected} walked, z = {z}"


def test_coins_of_beta_give_another_number_of_rounds(path):
    """Broken twin: scripts of beta, in the cell where the two walks are furthest apart."""
    twin, true = (
        walk(coins_of([path], 3, which), EXITS, (1, 2, 3, 4))
        for which in ("accept_prob", "accept_given_path")
    )
    worst = (twin["rounds"] - true["rounds"]).abs().idxmax()
    exit_layer, k = (int(true[name][worst]) for name in ("exit_layer", "draft_length"))
    rounds = measured_rounds(path, exit_layer, k, 150, which="accept_prob")
    expected = walked_rounds(path, exit_layer, k)
    z = (rounds.mean() - expected) / (rounds.std(ddof=1) / np.sqrt(len(rounds)))
    assert abs(z) > LIMIT, f"L={exit_layer}, k={k}: {rounds.mean()} for {expected}, z = {z}"


def test_an_eos_inside_a_round_ends_it_there():
    """The path ends by EOS: all coins up to it accepted, the round keeps what is left."""
    one = request(0, (5, 9, 11), 14, min_tokens=6, logit_bias=((EOS, 60.0),))
    path = observe_one(one)
    assert path.finish == "eos"
    assert len(path.tokens) == 7
    cells = [Cell(layer, k) for layer in EXITS for k in (1, 2, 4, 8)]
    given = {
        layer: (0.0, *path.scores.accept_given_path[row, 1:].tolist())
        for row, layer in enumerate(EXITS)
    }
    sure = {layer: (1.0,) * len(path.tokens) for layer in EXITS}
    by_hand = {1: (3, 3), 2: (2, 4), 4: (2, 5), 8: (1, 6)}  # k: rounds, accepted
    for accept, sums in ((given, None), (sure, by_hand)):
        subject = ConfirmPath(
            path_id="x", request=one, temperature=1.0, tokens=path.tokens, budget=14,
            accept_given_path=accept,
        )  # fmt: skip
        for row in confirm_path(setting(), subject, cells, clock=NoClock()):
            assert row["committed"] == 6, row
            assert row["tested"] <= row["drafted"], row
            if sums is not None:
                assert (row["rounds"], row["accepted"]) == sums[row["draft_length"]], row


class Counting(ScriptedPolicy):
    """Counts the laws computed and the draws made."""

    def __init__(self, laws, *args, **options):
        super().__init__(laws, *args, **options)
        self.done = Counter()
        for name in ("laws", "processed"):
            self._count(laws.target, name)

    def _count(self, processor, name):
        real = getattr(type(processor), name)

        def counted(logits, *args):
            self.done[name] += 1
            return real(processor, logits, *args)

        setattr(processor, name, counted)

    def uniforms(self, n):
        self.done["uniforms"] += n
        return super().uniforms(n)


def test_the_policy_works_as_hard_as_without_a_script(path):
    """Laws and draws of a replay are those of free rounds; only their outcome is replaced.

    One law a draft and one a verification; one uniform a draft, k'+1 a verification, and one more
    for each draft that a coin rejected on the path (the price of drawing from the residual).
    """
    k = 3
    policy, got = replayer(path, 2, k, Counting)(1, coins(path, 2, 1))
    drafted = sum(r.num_drafted for r in got.rounds)
    verified = sum(r.num_drafted > 0 for r in got.rounds)
    plain = sum(r.num_drafted == 0 for r in got.rounds)
    assert policy.done["laws"] == drafted + verified + plain
    rejected = sum(r.num_accepted < r.num_drafted for r in got.rounds)
    assert policy.done["uniforms"] == drafted + (drafted + verified) + plain + rejected


def test_a_rejected_draft_is_never_the_paths_token(path):
    """Rejected drafts come from max(0, q - p), which gives nothing where the coin could be 1."""
    wrong = 0

    class Watching(ScriptedPolicy):
        def settle(self, logits, output, drafted):
            nonlocal wrong
            t = len(output)
            same = drafted[0] == self.script.tokens[t]
            wrong += same != self.script.accepted[t]
            return super().settle(logits, output, drafted)

    run = replayer(path, 1, 1, Watching)
    for seed in range(20):
        run(seed, coins(path, 1, seed))
    assert wrong == 0, f"{wrong} drafts contradict their coin"


def test_laws_along_the_path_are_those_that_scored_it(path):
    laws = setting().laws(path.job.request, 1.0)
    p = path_laws(setting(), path.job.request.prompt_token_ids, path.tokens, laws)
    seen = -p[torch.arange(BUDGET), torch.tensor(path.tokens)].log().numpy()
    assert np.abs(seen - path.scores.surprisal).max() < 1e-4
