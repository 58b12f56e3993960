"""The planner: from measurements to rules, a pure function. METHOD.md §5."""

from collections.abc import Sequence

from selfspec_cli.plan.document import Laws, PlanDocument, Rule, Settings, TraceFacts
from selfspec_cli.plan.inputs import PlanInputs
from selfspec_cli.plan.judgement import Judge
from selfspec_cli.plan.notices import warnings_of
from selfspec_cli.plan.pools import build_pools
from selfspec_cli.plan.rules import Basis, make_rule
from selfspec_cli.plan.settings import PlanSettings
from selfspec_cli.plan.temperatures import extend_temperatures
from selfspec_cli.plan.totals import global_cells, total_of, verdict_of
from selfspec_cli.plan.traffic import bucket_keys, laws_of, path_table

_PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")


def build_plan(inputs: PlanInputs, settings: PlanSettings) -> PlanDocument:
    """Return the plan of a run, before any real decode confirms it.

    Args:
        inputs: what was measured.
        settings: when a rule is enabled.

    Raises:
        CostRangeError: costs were not measured where a walk row needs them.
    """
    basis = basis_of(inputs, settings)
    rules = [make_rule(key, basis) for key in bucket_keys(basis.paths)]
    return assemble(rules, basis)


def basis_of(inputs: PlanInputs, settings: PlanSettings) -> Basis:
    """Return what all rules are made from: buckets, pools and their evidence."""
    paths = path_table(inputs, settings.context_edges)
    return Basis(
        inputs=inputs,
        paths=paths,
        pools=build_pools(inputs, paths),
        judge=Judge(inputs, settings),
    )


def assemble(rules: Sequence[Rule], basis: Basis) -> PlanDocument:
    """Return the document of these rules: ranges of temperature, total, verdict and warnings."""
    inputs, settings = basis.inputs, basis.judge.settings
    ranged = extend_temperatures(rules)
    document = PlanDocument(
        model=inputs.facts.model,
        measured_on=inputs.facts.measured_on,
        traces=_traces(basis),
        laws=_laws(basis),
        settings=Settings(
            margin=settings.margin,
            min_requests=settings.min_requests,
            max_slow_share=settings.max_slow_share,
            context_edges=list(settings.context_edges),
            exit_layers=list(inputs.exit_layers),
            exit_layers_beyond=list(inputs.exit_layers_beyond),
            draft_lengths=list(inputs.draft_lengths),
        ),
        verdict=verdict_of(ranged),
        total=total_of(ranged, basis),
        rules=ranged,
        warnings=warnings_of(ranged, basis),
        origins=_origins(basis),
        measurement_hash=inputs.facts.measurement_hash,
        analysis_hash=settings.analysis_hash,
    )
    # `global` is a keyword of the language, so the field cannot be named in the call.
    return document.model_copy(update={"global_": global_cells(basis.pools, basis.judge)})


def _origins(basis: Basis) -> dict[str, str]:
    """Where each kind of number comes from: acceptance from this log, costs from a clock."""
    facts = basis.inputs.facts
    counted = ", ".join(f"{n} {source}" for source, n in sorted(facts.traces.sources.items()))
    costs = facts.measured_on.costs
    return {
        "acceptance": f"replayed requests of this log ({counted or 'no path'})",
        "costs": f"timed parts and rounds on random tokens ({costs.source})",
        "speedup": "path walk over those acceptances, priced with those costs",
        "measured_speedup": "real decodes of this log's requests",
    }


def _traces(basis: Basis) -> TraceFacts:
    """Facts of the traffic with the prompt lengths that are covered: outside them all is off."""
    facts = basis.inputs.facts.traces
    prompts = basis.paths.loc[basis.paths["priced"], "prompt_tokens"]
    if prompts.empty:
        return facts
    covered = {"prompt_tokens_min": int(prompts.min()), "prompt_tokens_max": int(prompts.max())}
    return facts.model_copy(update=covered)


def _laws(basis: Basis) -> Laws:
    found = laws_of(basis.paths.loc[basis.paths["priced"]])
    penalties = {tuple(getattr(law, name) for name in _PENALTIES) for law in found}
    return Laws(
        top_p=sorted({law.top_p for law in found}),
        top_k=sorted({law.top_k for law in found}),
        penalties=[dict(zip(_PENALTIES, values, strict=True)) for values in sorted(penalties)],
    )


def no_evidence(plan: PlanDocument) -> bool:
    """Whether no bucket had enough evidence: `calibrate` then leaves with exit code 3."""
    return all(rule.evidence == "none" for rule in plan.rules)
