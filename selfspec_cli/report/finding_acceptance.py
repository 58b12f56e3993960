"""Findings about acceptance and about the traffic it was observed on."""

from collections.abc import Iterator

from selfspec_cli.plan.document import Rule
from selfspec_cli.report.finding_types import GOOD_ACCEPTANCE, Evidence, Finding, judged_off, scope
from selfspec_cli.report.format import number, percent, plural
from selfspec_cli.report.rule_rows import by_traffic, rule_label

CHANCE_ACCEPTANCE = 0.05  # a drafter that knows the language is far above this on every layer
MIN_POSITIONS = 100  # at 5 % acceptance, so many misses in a row come once in 170 runs
NEAR_ONE = 0.95  # the longest draft is nearly always kept: longer ones may pay
TEMPERATURE_DROP = 0.05  # a fall of acceptance that a user would act on


def chance_level(evidence: Evidence) -> Iterator[Finding]:
    """Acceptance below 5 % on every layer: the head does not read inner layers at all."""
    table = evidence.by_layer
    if table.empty or table["num_positions"].min() < MIN_POSITIONS:
        return
    upper = table["high"].fillna(table["accept_prob_mean"])
    if (upper < CHANCE_ACCEPTANCE).all():
        error = evidence.self_check_error
        norm = (
            f"The layer view reproduced the model's own forward pass to {error:.0e}, so the final "
            "norm is there after the last layer; whether exits pass it too, that does not show."
            if error is not None
            else "Whether the final norm runs before the head was not checked."
        )
        yield Finding(
            code="chance_level",
            symptom="Drafts are accepted at chance level on every layer.",
            evidence=f"Highest mean acceptance {percent(table['accept_prob_mean'].max(), 1)}. "
            f"{norm}",
            cause="The head cannot read inner layers of this model, or the final norm is skipped "
            "before it.",
            remedy="Check the norm; else train exits (adapters or layer dropout), or use another "
            "drafter.",
        )


def low_acceptance(evidence: Evidence) -> Iterator[Finding]:
    """Rules that are off with less acceptance than their break-even."""
    rules = [
        rule
        for rule in judged_off(evidence)
        if _short_of_break_even(rule) and (rule.acceptance_rate_tested or 0.0) < GOOD_ACCEPTANCE
    ]
    if rules:
        first = rules[0]
        yield Finding(
            code="low_acceptance",
            symptom="Too few drafted tokens are accepted.",
            evidence=f"{scope(rules)}. {rule_label(first)}: at L={first.drafter.exit_layer}, "
            f"{percent(first.acceptance_rate_tested)} of the tested drafts are accepted, "
            f"{_needed(first)}.",
            cause="The first layers do not predict the whole model on this text.",
            remedy="A deeper exit layer if the range ends below it, trained exits, another "
            "drafter, or off.",
        )


def _short_of_break_even(rule: Rule) -> bool:
    needed, had = rule.break_even_acceptance, rule.acceptance_rate_tested
    return had is not None and (needed is None or had < needed)


def _needed(rule: Rule) -> str:
    if rule.break_even_acceptance is None:
        return "and at its costs not even 100 % would pay"
    return f"{percent(rule.break_even_acceptance)} is needed to break even"


def falls_with_temperature(evidence: Evidence) -> Iterator[Finding]:
    """At the layer where acceptance falls most from the lowest to the highest temperature.

    Only layers that rules may choose: what happens at those observed beyond concerns nobody.
    """
    table = evidence.by_layer
    if not table.empty:
        table = table.loc[table["exit_layer"].isin(evidence.plan.settings.exit_layers)]
    if table.empty or table["temperature"].nunique() < 2:
        return
    ends = [table["temperature"].min(), table["temperature"].max()]
    cold, hot = (table.loc[table["temperature"] == end] for end in ends)
    both = cold.merge(hot, on="exit_layer", suffixes=("_cold", "_hot"))
    drop = both["accept_prob_mean_cold"] - both["accept_prob_mean_hot"]
    sure = (both["high_hot"] < both["low_cold"]) & (drop > TEMPERATURE_DROP)
    if sure.any():
        worst = both.loc[drop.loc[sure].idxmax()]
        yield Finding(
            code="falls_with_temperature",
            symptom="Acceptance falls at high temperature.",
            evidence=f"At L={worst['exit_layer']:g}: {percent(worst['accept_prob_mean_cold'])} at "
            f"T={ends[0]:g}, {percent(worst['accept_prob_mean_hot'])} at T={ends[1]:g}.",
            cause="Hotter sampling draws from the tail of the law, which inner layers know least.",
            remedy="Use the rules by temperature as they are; shorter drafts where it is hot.",
        )


def two_peaks(evidence: Evidence) -> Iterator[Finding]:
    """Histograms with a peak at nothing and one at everything (`accepted_lengths`)."""
    found = [(rule, lengths) for rule, lengths in evidence.lengths if lengths.two_peaks]
    if found:
        rule, lengths = found[0]
        yield Finding(
            code="two_peaks",
            symptom="Rounds accept all or nothing: the median gains while the tail pays.",
            evidence=f"{plural(len(found), 'bucket')}. {rule_label(rule)}, "
            f"L={rule.drafter.exit_layer}, k={rule.draft.length}: {percent(lengths.share[0])} of "
            f"the rounds accept nothing ({percent(lengths.constant[0])} expected of constant "
            f"acceptance), {percent(lengths.share[-1])} accept everything "
            f"({percent(lengths.constant[-1])} expected).",
            cause="Easy and hard stretches or requests are mixed in one bucket.",
            remedy="Split the bucket by task (--task-from), cap k, and watch the slow share.",
        )


def longer_drafts(evidence: Evidence) -> Iterator[Finding]:
    """The longest draft length tried is nearly always kept."""
    longest = max(evidence.plan.settings.draft_lengths, default=0)
    rules = [
        rule
        for rule in by_traffic(evidence.plan.rules)
        if rule.draft.length == longest
        and (rule.acceptance_rate_tested or 0.0) >= NEAR_ONE
        and rule.speedup.low is not None
    ]
    if rules:
        first = rules[0]
        yield Finding(
            code="longer_drafts",
            symptom="Nearly every draft is kept, at the longest draft length tried.",
            evidence=f"{scope(rules)}. {rule_label(first)}: "
            f"{percent(first.acceptance_rate_tested, 1)} accepted at k={longest}.",
            cause="Predictable text, for example a grammar that leaves few candidates.",
            remedy=f"Measure longer drafts: --draft-lengths 1-{2 * longest}.",
        )


def partial_window(evidence: Evidence) -> Iterator[Finding]:
    """Outputs were observed only for a part of what requests may ask."""
    rules = [rule for rule in by_traffic(evidence.plan.rules) if rule.window == "partial"]
    if rules:
        window = evidence.plan.traces.output_window
        yield Finding(
            code="partial_window",
            symptom="Requests may run far beyond the outputs that were observed.",
            evidence=f"{scope(rules)}: observed up to {number(window.observed_tokens, 0)} tokens, "
            "allowed or recorded lengths are at least twice that.",
            cause="The run capped outputs below what the traffic is allowed.",
            remedy="Observe longer outputs (--max-tokens) before trusting a rule for long answers.",
        )


def thin(evidence: Evidence) -> Iterator[Finding]:
    """Buckets below the minimum number of requests."""
    rules = [rule for rule in by_traffic(evidence.plan.rules) if rule.requests_missing > 0]
    if rules:
        most = max(rules, key=lambda rule: (rule.time_share or 0.0, rule.requests_missing))
        yield Finding(
            code="thin_buckets",
            symptom="Some buckets have too few requests to decide on their own.",
            evidence=f"{scope(rules)}: fewer than {evidence.plan.settings.min_requests} requests. "
            f"{rule_label(most)} has {most.num_requests} and needs {most.requests_missing} more.",
            cause="The log, or the sample drawn from it, holds few requests of these kinds.",
            remedy="A larger --limit or a longer log; fewer tasks or context bands.",
        )
