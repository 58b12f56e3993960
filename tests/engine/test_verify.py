"""The verifier's law without sampling noise: what is accepted, what replaces it, and limits."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_cli.engine.verify import draw, residual, verify, verify_greedy
from selfspec_cli.errors import ShapeError

PROPERTY = settings(deadline=None, derandomize=True)
LARGEST_UNIFORM = 1 - 2.0**-53
WEIGHTS = st.one_of(st.just(0.0), st.floats(1e-6, 1.0))


def _normalised(weights: list[float], dtype: torch.dtype = torch.float64) -> torch.Tensor:
    law = torch.tensor(weights, dtype=torch.float64)
    return (law / law.sum()).to(dtype)


def _law(size: int, dtype: torch.dtype = torch.float64) -> st.SearchStrategy[torch.Tensor]:
    weights = st.lists(WEIGHTS, min_size=size, max_size=size).filter(lambda w: sum(w) > 0)
    return weights.map(lambda w: _normalised(w, dtype))


PAIRS = st.integers(2, 12).flatmap(lambda size: st.tuples(_law(size), _law(size)))


def _one_round(p, q, token, *uniforms):
    """A round of one draft whose bonus law is uniform."""
    bonus = torch.full_like(p, 1 / len(p))
    return verify(
        torch.tensor([token]),
        q[None],
        torch.stack([p, bonus]),
        torch.tensor(uniforms, dtype=torch.float64),
    )


@PROPERTY
@given(PAIRS)
def test_committed_token_follows_the_target_exactly(pair):
    """q·min(1, p/q) + (1 - β)·residual = p for every token, with β = 1 - TV."""
    p, q = pair
    kept = torch.minimum(p, q)
    beta = float(kept.sum())
    rest = residual(p, q)
    law = kept + (1 - beta) * rest / rest.sum()
    worst = float((law - p).abs().max())
    assert worst < 1e-12, f"law differs from p by {worst:.3g}"
    assert abs(beta - (1 - float((p - q).abs().sum()) / 2)) < 1e-12


@PROPERTY
@given(PAIRS, st.data())
def test_draft_is_accepted_exactly_below_p_over_q(pair, data):
    p, q = pair
    token = data.draw(st.sampled_from(q.nonzero().flatten().tolist()))
    limit = min(1.0, float(p[token] / q[token]))
    below, above = limit * (1 - 1e-9), limit * (1 + 1e-9)
    if limit > 0:
        assert _one_round(p, q, token, below, 0.5).num_accepted == 1, f"u = {below} < {limit}"
    if above < 1:
        assert _one_round(p, q, token, above, 0.5).num_accepted == 0, f"u = {above} > {limit}"


@PROPERTY
@given(PAIRS)
def test_residual_has_the_mass_of_the_rejections(pair):
    p, q = pair
    rest = residual(p, q)
    rejected = 1 - float(torch.minimum(p, q).sum())
    if rejected > 1e-9:
        assert abs(float(rest.sum()) - rejected) < 1e-12
        assert float(rest[p <= q].sum()) == 0, "a token that q already gives enough of is redrawn"
    assert float(rest.sum()) > 0
    assert float(rest.min()) >= 0


@PROPERTY
@given(st.integers(2, 12).flatmap(lambda n: _law(n, torch.float32)), st.data())
def test_equal_laws_never_reject(p, data):
    token = data.draw(st.sampled_from(p.nonzero().flatten().tolist()))
    verdict = _one_round(p, p.clone(), token, LARGEST_UNIFORM, 0.3)
    assert (verdict.num_accepted, verdict.kind) == (1, "bonus")


@PROPERTY
@given(st.integers(1, 6), st.integers(1, 6), st.data())
def test_disjoint_supports_always_reject(left, right, data):
    p = torch.cat([data.draw(_law(left)), torch.zeros(right, dtype=torch.float64)])
    q = torch.cat([torch.zeros(left, dtype=torch.float64), data.draw(_law(right))])
    token = data.draw(st.sampled_from(q.nonzero().flatten().tolist()))
    verdict = _one_round(p, q, token, 0.0, data.draw(st.floats(0, LARGEST_UNIFORM)))
    assert (verdict.num_accepted, verdict.kind) == (0, "recovered")
    assert p[verdict.next_token] > 0, f"recovered {verdict.next_token}, which p excludes"


@PROPERTY
@given(st.integers(1, 12).flatmap(_law), st.floats(0, 1, exclude_max=True))
def test_draw_is_the_inverse_of_the_distribution_function(law, uniform):
    token = draw(law, uniform)
    below, upto = float(law[:token].sum()), float(law[: token + 1].sum())
    assert law[token] > 0, f"token {token} has no weight"
    assert below - 1e-12 <= uniform <= upto + 1e-12, f"{below} <= {uniform} <= {upto}"


def test_draw_at_the_top_returns_the_last_token_with_weight():
    assert draw(torch.tensor([0.3, 0.7, 0.0]), 1.0) == 1  # a uniform that rounded up to 1


def test_a28_acceptance_is_the_sum_of_minima():
    """p = [.6, .4], q = [.8, .2]: accepted 0.80, output [.6, .4]; argmax drafts give [.75, .25]."""
    p, q = torch.tensor([0.6, 0.4]).double(), torch.tensor([0.8, 0.2]).double()
    rest = residual(p, q)
    assert float(torch.minimum(p, q).sum()) == pytest.approx(0.80)
    assert rest.tolist() == pytest.approx([0.0, 0.2])
    assert _one_round(p, q, 0, 0.7499, 0.0).num_accepted == 1  # p/q = 0.75
    assert _one_round(p, q, 0, 0.7501, 0.0).num_accepted == 0
    assert _one_round(p, q, 0, 0.7501, 0.0).next_token == 1  # 0.8 · 0.25 goes to token 1
    assert _one_round(p, q, 1, LARGEST_UNIFORM, 0.0).num_accepted == 1


def test_a30_no_equality_test_on_sampled_tokens():
    """Equality with a token drawn from p would accept Σp·q = 0.56 of these drafts."""
    p, q = torch.tensor([0.6, 0.4]).double(), torch.tensor([0.8, 0.2]).double()
    grid = (torch.arange(200, dtype=torch.float64) + 0.5) / 200
    accepted = sum(
        float(q[token]) * _one_round(p, q, token, float(u), 0.99).num_accepted / len(grid)
        for token in (0, 1)
        for u in grid
    )
    assert accepted == pytest.approx(0.80, abs=1e-6), "0.56 would be the equality rule"


ULP_UP = torch.nextafter(torch.tensor(1 / 7), torch.tensor(1.0))
ONE_HOT = torch.tensor([0.0, 1.0, 0.0])
UNIFORM = torch.full((7,), 1 / 7)
ONE_ULP = torch.cat([ULP_UP[None], UNIFORM[1:]])


@pytest.mark.parametrize(
    ("p", "q"),
    [(ONE_HOT, ONE_HOT), (UNIFORM, UNIFORM), (UNIFORM, ONE_ULP), (ONE_ULP, UNIFORM)],
    ids=["one-hot", "uniform", "draft one ulp up", "target one ulp up"],
)
def test_a32_equal_up_to_rounding_never_gives_nan(p, q):
    for token in q.nonzero().flatten().tolist():
        for uniform in (0.0, 0.5, LARGEST_UNIFORM):
            verdict = _one_round(p, q, token, uniform, LARGEST_UNIFORM)
            assert 0 <= verdict.next_token < len(p)
            if torch.equal(p, q):
                assert verdict.num_accepted == 1, f"p = q rejected token {token} at u = {uniform}"


def test_a32_empty_or_broken_residual_falls_back_to_the_target():
    assert torch.equal(residual(UNIFORM, UNIFORM), UNIFORM)
    broken = torch.tensor([float("nan"), 0.5, 0.5])
    assert torch.equal(residual(ONE_HOT, broken), ONE_HOT), "NaN slipped through the total's check"


def test_first_rejection_ends_the_round():
    p = torch.tensor([[0.5, 0.5], [0.0, 1.0], [1.0, 0.0], [0.5, 0.5]])
    q = torch.tensor([[0.5, 0.5], [1.0, 0.0], [1.0, 0.0]])
    verdict = verify(torch.tensor([0, 0, 0]), q, p, torch.full((4,), 0.1).double())
    assert (verdict.num_accepted, verdict.next_token, verdict.kind) == (1, 1, "recovered")


def test_zero_drafts_yield_a_bonus_token():
    verdict = verify(
        torch.empty(0, dtype=torch.long),
        torch.empty(0, 2),
        torch.tensor([[0.25, 0.75]]),
        torch.tensor([0.5], dtype=torch.float64),
    )
    assert (verdict.num_accepted, verdict.next_token, verdict.kind) == (0, 1, "bonus")


def test_one_target_law_too_few_is_refused():
    """Twin of a verification without a bonus law."""
    q = torch.tensor([[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ShapeError, match=r"2 drafts .*\(2, 2\).*\(2, 2\).* 3 uniforms"):
        verify(torch.tensor([0, 1]), q, q, torch.rand(3).double())
    with pytest.raises(ShapeError, match="2 drafts need 3 target tokens, got 2"):
        verify_greedy(torch.tensor([0, 1]), torch.tensor([0, 1]))


def test_scalar_draft_probabilities_are_refused():
    """Twin that keeps only log q(x): no residual can be formed from it."""
    with pytest.raises(ShapeError, match=r"draft laws \(1, 1\)"):
        verify(
            torch.tensor([0]),
            torch.tensor([[0.8]]),
            torch.tensor([[0.6, 0.4], [0.5, 0.5]]),
            torch.rand(2).double(),
        )


@pytest.mark.parametrize("bad", [[0.5, 0.4], [float("nan"), 0.5], [float("inf"), 0.0]])
def test_law_that_does_not_sum_to_one_is_refused(bad):
    with pytest.raises(ValueError, match="do not sum to 1"):
        _one_round(torch.tensor([0.5, 0.5]), torch.tensor(bad), 0, 0.1, 0.1)


def test_draft_that_q_excludes_is_refused():
    with pytest.raises(ValueError, match="q = 0"):
        _one_round(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), 0, 0.1, 0.1)


@pytest.mark.parametrize(
    ("drafted", "target", "expected"),
    [
        ([5, 6, 7], [5, 6, 7, 8], (3, 8, "bonus")),
        ([5, 6, 7], [4, 6, 7, 8], (0, 4, "recovered")),
        ([5, 6, 7], [5, 6, 9, 7], (2, 9, "recovered")),
        ([5, 9, 7], [5, 6, 7, 8], (1, 6, "recovered")),  # a later match is not counted
        ([], [3], (0, 3, "bonus")),
    ],
)
def test_greedy_accepts_the_common_prefix(drafted, target, expected):
    verdict = verify_greedy(torch.tensor(drafted, dtype=torch.long), torch.tensor(target))
    assert (verdict.num_accepted, verdict.next_token, verdict.kind) == expected
