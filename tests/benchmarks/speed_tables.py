"""Tables of the speed benchmarks from their result files; the standard library is enough.

A table shows what was measured: a section that was not run has no rows.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Document = Mapping[str, Any]


def about(value: Mapping[str, Any] | None, digits: int = 2) -> str:
    """`2.31 (2.25-2.38)`: median and quartiles."""
    if value is None or value["median"] is None:
        return "n/a"
    if value["low"] is None:
        return f"{value['median']:.{digits}f}"
    low, high = (f"{value[key]:.{digits}f}" for key in ("low", "high"))
    return f"{value['median']:.{digits}f} ({low} to {high})"


def markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


def step_speed_table(document: Document) -> str:
    """Plain steps, verification, parts, preparation, batch and the compiled rival."""
    sections = document["sections"]
    rows = [
        *_steps_rows([sections[name] for name in ("short", "long") if name in sections]),
        *_parts_rows(sections.get("parts")),
        *_profile_rows(sections.get("profile")),
        *_preparation_rows(sections.get("preparation")),
        *_batch_rows(sections.get("batch")),
        *_rival_rows(sections.get("rival"), "compiled"),
        *_rival_rows(sections.get("frozen"), "compiled, weights frozen"),
    ]
    return markdown(("quantity", "at", "median (quartiles)", "wanted"), rows)


STEP_NAMES = {
    "floor": "bandwidth floor",
    "compiled": "ours, compiled",
    "eager": "ours, eager",
    "transformers": "transformers `generate`, dynamic cache",
    "static": "transformers `generate`, static cache",
}
RATIOS = (
    ("transformers", "transformers ÷ ours, dynamic cache", "at least 2, aim 2.5"),
    ("static", "transformers ÷ ours, static cache", ""),
    ("eager", "eager ÷ compiled, both ours", ""),
    ("verify3", "v(3), all layers over 3 positions ÷ one step", ""),
    ("verify5", "v(5), all layers over 5 positions ÷ one step", "at most 1.5, aim 1.3"),
    ("verify9", "v(9), all layers over 9 positions ÷ one step", ""),
)


def _steps_rows(sections: Sequence[Document]) -> Iterable[tuple[str, ...]]:
    for one in sections:
        where = f"context {one['context']}"
        for name, told in STEP_NAMES.items():
            yield f"{told}, ms a token", where, about(one["ms"][name], 1), ""
    for one in sections:
        where = f"context {one['context']}"
        for name, told, wanted in RATIOS:
            yield told, where, about(one["over_compiled"][name]), wanted
        yield "ours ÷ bandwidth floor", where, about(one["compiled_over_floor"]), "aim 1.6"
        same = ", ".join(f"{name} {count}" for name, count in one["equal_tokens"].items())
        yield f"first equal tokens of {one['tokens']}", where, same, "all"


def _parts_rows(section: Document | None) -> Iterable[tuple[str, ...]]:
    for one in section["contexts"] if section else ():
        where = f"context {one['context']}"
        for layer, value in one["c"].items():
            yield f"c, a draft step at L = {layer}", where, about(value), ""
        for layer, value in one["v4"].items():
            yield f"v at L = {layer}, k = 4", where, about(value), ""
        yield "o at k = 4", where, about(one["o4"], 3), "at most 0.08"


def _preparation_rows(section: Document | None) -> Iterable[tuple[str, ...]]:
    if section:
        what = f"{section['programs']} layer programs"
        yield "preparation, s, cache folder empty", what, about(section["cold_s"], 1), ""
        yield "preparation, s, cached", what, about(section["warm_s"], 1), "at most 30"


def _profile_rows(section: Document | None) -> Iterable[tuple[str, ...]]:
    if section:
        where, ms = f"context {section['context']}", section["ms"]
        count = section["products"]
        yield "a plain step of ours, ms", where, about(ms["step"], 1), ""
        yield f"of it the layers' {count} products, run alone", where, about(ms["products"], 1), ""
        yield "of it all layers", where, about(ms["layers"], 1), ""
        yield "of it norm and head", where, about(ms["head"], 1), ""
        yield "of it embedding, masks, rotary tables", where, about(ms["masks"], 1), ""


def _batch_rows(section: Document | None) -> Iterable[tuple[str, ...]]:
    if section:
        rows, told = section["rows"], f"tokens a second of {section['rows']} rows ÷ 1"
        where = f"context {section['context']}, decode steps"
        yield told, where, about(section["steps_ratio"]), "at least 3"
        where = f"{section['requests']} sample requests, {section['mean_rows']:.1f} rows a step"
        yield f"{told}, prompts not counted", where, about(section["decode_ratio"]), "at least 3"
        counts = f"{section['prompt_tokens']} prompt and {section['all_tokens']} output tokens"
        yield (
            f"{told}, prompts counted",
            f"the same, {counts}",
            about(section["regeneration_ratio"]),
            "",
        )
        same = f"{section['equal_tokens']} of {section['all_tokens']}"
        yield f"equal tokens, {rows} rows and 1", where, same, "all but after near-ties"


def _rival_rows(section: Document | None, how: str) -> Iterable[tuple[str, ...]]:
    if not section:
        return
    where, name = f"context {section['context']}", f"transformers `generate`, {how}"
    if not section["finished"]:
        told = f"not ready after {section['limit_s']:.0f} s"
        yield name, where, told, ""
        return
    yield f"{name}, s to compile", where, f"{section['compile_s']:.0f}", ""
    yield f"{name}, ms a token", where, about(section["ms"]["rival"], 1), ""
    yield f"{name} ÷ ours", where, about(section["over_compiled"]), ""


def early_exit_table(document: Document) -> str:
    """Ours against the library's early exit, one row a cell."""
    head = (
        "L, k", "their early exit ÷ ours, per token", "plain `generate` ÷ ours",
        "plain `generate` ÷ their early exit", "our speculation against our plain steps",
        "rounds, ours and theirs", "equal tokens",
    )  # fmt: skip
    return markdown(head, map(_rival_cell, document["sections"].values()))


def _rival_cell(one: Document) -> tuple[str, ...]:
    return (
        f"{one['exit_layer']}, {one['draft_length']}",
        about(one["theirs_over_ours"]),
        about(one["plain_over_ours"]),
        about(one["plain_over_theirs"]),
        about(one["own_plain_over_ours"]),
        f"{one['rounds']['ours']}, {one['rounds']['theirs']}",
        f"{one['equal_tokens']} of {one['all_tokens']}",
    )


def overhead_table(document: Document) -> str:
    """o by law and draft length, in real rounds and as the cost stage prices it."""
    head = ("law", "k", "round, ms", "its passes, ms", "o", "o as priced", "wanted")
    rows = (
        (
            law,
            str(one["draft_length"]),
            about(one["round_ms"], 1),
            about(one["passes_ms"], 1),
            about(one["o"], 3),
            about(one["part"], 3),
            "at most 0.08",
        )
        for section in document["sections"].values()
        for law, own in section["laws"].items()
        for one in own
    )
    return markdown(head, rows)


def growth_table(document: Document) -> str:
    """How each stage's time grows along each axis."""
    sections = {name: one for name, one in document["sections"].items() if name != "estimate"}
    stages = list(dict.fromkeys(name for one in sections.values() for name in one["stages"]))
    head = ("axis", "sizes", "whole run, s", "exponent of the whole", *stages)
    rows = (
        (
            axis,
            ", ".join(map(str, one["sizes"])),
            ", ".join(f"{seconds:.1f}" for seconds in one["total_s"]),
            about(one["exponent"]),
            *(_stage_growth(one["stages"].get(stage)) for stage in stages),
        )
        for axis, one in sections.items()
    )
    return markdown(head, rows)


def _stage_growth(stage: Document | None) -> str:
    """`3.1 s, 0.93`: seconds at the largest size, exponent."""
    if stage is None:
        return "-"
    return f"{stage['seconds'][-1]:.1f} s, {about(stage['exponent'])}"
