"""The planner: from measurements to rules, a pure function. METHOD.md §5."""

from collections.abc import Sequence

from selfspec_cli.plan.by_batch import max_batch
from selfspec_cli.plan.document import BatchFacts, Laws, PlanDocument, Rule, Settings
from selfspec_cli.plan.document_origin import TraceFacts
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
    return draft_plan(basis_of(inputs, settings))


def draft_plan(basis: Basis) -> PlanDocument:
    """Return the plan of a basis, as `build_plan` does of what it is made from."""
    return assemble([make_rule(key, basis) for key in bucket_keys(basis.paths)], basis)


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
    """Return the document of these rules: how far each holds, total, verdict and warnings."""
    inputs, settings = basis.inputs, basis.judge.settings
    ranged = [
        rule.model_copy(update={"max_batch": max_batch(rule)})
        for rule in extend_temperatures(rules)
    ]
    document = PlanDocument(
        model=inputs.facts.model,
        measured_on=inputs.facts.measured_on,
        traces=_traces(basis),
        laws=_laws(basis),
        batch_sizes=list(inputs.costs.batch_sizes),
        batches=[_batch_facts(size, basis) for size in inputs.costs.batch_sizes],
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


def _batch_facts(size: int, basis: Basis) -> BatchFacts:
    """Plain decoding of a batch, and the prompts that its costs cover: outside them all is off."""
    step = basis.inputs.facts.ar_step_by_batch[size]
    timed = [
        pool.at_batch[size].path_ids for pool in basis.pools.all.values() if size in pool.at_batch
    ]
    inside = basis.paths["path_id"].isin(frozenset().union(*timed))
    prompts = basis.paths.loc[inside, "prompt_tokens"]
    return BatchFacts(
        batch_size=size,
        ar_step_s=step,
        tokens_per_s=None if step is None else size / step,
        prompt_tokens_min=int(prompts.min()) if len(prompts) else None,
        prompt_tokens_max=int(prompts.max()) if len(prompts) else None,
    )


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
