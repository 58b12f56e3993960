"""What observing a path costs: scores of all exits against the plain way, heads, rows together.

usage: python tests/benchmarks/observe_speed.py [MODEL] [--engine eager] [--only score] [--json OUT]

Two or three minutes on a quiet machine, about one a table. Pairs are interleaved, and a ratio is
the median of its pairs with their range. The plain way is what METHOD.md says and no more: for each
exit one product of the model's own head, one law, one reduction, an argmax. Paths are the model's
own text.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import selfspec_cli.replay.observe as observing
from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.engines import ENGINES
from selfspec_cli.engine.load import LoadedModel, LoadOptions, load_model
from selfspec_cli.engine.view import LayerView
from selfspec_cli.records import PreparedRequest, Sampling
from selfspec_cli.replay.observe import PathJob, observe
from selfspec_cli.replay.score import Scores, score
from selfspec_cli.replay.setting import Setting

TEXTS = (
    "Summarise in two sentences: the council voted to widen the cycle network by forty kilometres.",
    "Write a Python function that merges two sorted lists without using sort.",
    "Tell the beginning of a story about a lighthouse keeper and a storm.",
    "Extract the date, the place and the price: the fair opens in Leiden on 3 May, entry 12 euros.",
    "Why does bread rise? Answer for a child of eight.",
    "Translate into French: the train to the coast leaves at seven from platform two.",
    "List five questions to ask before renting a flat.",
    "Explain the difference between a virus and a bacterium.",
)
TEMPERATURES = (0.0, 0.7)
NUM_EXITS = (12, 20)
POSITIONS = 64
PAIRS = 7
TOKENS = 16  # decoded of each path, for tokens a second
SAME = 1e-4  # most two ways may differ in any score


def timed(call: Callable[[], object]) -> float:
    """Seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def compared(taken: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Medians of both sides, and the ratio first / second with its range."""
    ratios = sorted(a / b for a, b in taken)
    return {
        "first_s": statistics.median(a for a, _ in taken),
        "second_s": statistics.median(b for _, b in taken),
        "ratio": statistics.median(ratios),
        "low": ratios[0],
        "high": ratios[-1],
    }


def pairs(first: Callable[[], float], second: Callable[[], float]) -> dict[str, float]:
    """Run two ways in turn, each first in every other pair; a way returns its seconds."""
    first(), second()  # warm
    taken = []
    for at in range(PAIRS):
        seconds = [way() for way in ((first, second) if at % 2 else (second, first))]
        taken.append((seconds[0], seconds[1]) if at % 2 else (seconds[1], seconds[0]))
    return compared(taken)


def request(loaded: LoadedModel, number: int, budget: int, **sampling: Any) -> PreparedRequest:
    """One of the texts as a prepared request."""
    chat = [{"role": "user", "content": TEXTS[number]}]
    text = loaded.tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    ids = loaded.tokenizer(text, add_special_tokens=False).input_ids
    return PreparedRequest(
        request_id=str(number), group_id=str(number), task="text", prompt_token_ids=tuple(ids),
        completion_token_ids=None, temperature=None, max_tokens=budget, stop=(), finish="unknown",
        sampling=Sampling(**sampling), content_hash="", source="",
    )  # fmt: skip


def jobs_of(loaded: LoadedModel, budget: int, temperature: float, **sampling: Any) -> list[PathJob]:
    """A path of every text."""
    wanted = [request(loaded, number, budget, **sampling) for number in range(len(TEXTS))]
    return [PathJob(request=one, temperature=temperature, source="regenerated") for one in wanted]


def stretch(setting: Setting, temperature: float) -> tuple[Tensor, list[int]]:
    """States [N, n, H] after every layer along one regenerated path, and its tokens [n]."""
    view = setting.loaded.view
    (job,) = jobs_of(setting.loaded, POSITIONS, temperature)[2:3]
    decoder = BatchDecoder(
        view, [setting.job(job.request)], [setting.policy(job.request, temperature)]
    )
    kept: list[Tensor] = []
    decoder.prefill(lambda _, __, hidden: kept.append(hidden[0, 0].clone()))
    while decoder.running:
        decoder.step(lambda _, hidden: kept.append(hidden[0, 0].clone()))
    tokens = decoder.outputs[0]
    return torch.stack(kept).view(len(tokens), view.num_layers, -1).transpose(0, 1), tokens


@torch.inference_mode()
def plain(view: LayerView, states: Tensor, tokens: Sequence[int], temperature: float) -> Tensor:
    """Acceptance [2, E, n] the plain way: r and beta, each exit on its own."""

    def law(state: Tensor) -> tuple[Tensor, Tensor]:
        logits = torch.nn.functional.linear(view._norm(state), view._head.weight).float()
        if temperature == 0.0:
            return logits, logits.argmax(dim=-1)
        law = torch.softmax((logits - logits.amax(-1, keepdim=True)) / temperature, dim=-1)
        return law, law.argmax(dim=-1)

    x = torch.tensor(tokens)[:, None]
    p, top = law(states[-1])
    rows = []
    for state in states[:-1]:
        q, own = law(state)
        agree = (own == top).float()
        if temperature == 0.0:
            rows.append((agree, agree))
            continue
        r = (q.gather(1, x) / p.gather(1, x))[:, 0].clamp(max=1)
        rows.append((r, torch.minimum(p, q).sum(dim=-1)))
    return torch.stack([torch.stack(pair) for pair in rows], dim=1)


def score_row(setting: Setting, temperature: float, num_exits: int) -> dict[str, Any]:
    """One line of the table of scores: both ways over the same stretch, checked to agree."""
    view = setting.loaded.view
    states, tokens = stretch(setting, temperature)
    last = view.num_layers - 1
    exits = [round(last * (0.3 + 0.7 * i / num_exits)) for i in range(num_exits)]
    chosen = states[[*(layer - 1 for layer in exits), view.num_layers - 1]]
    (job,) = jobs_of(setting.loaded, POSITIONS, temperature)[:1]
    laws = setting.laws(job.request, temperature)
    found: list[Any] = [None, None]

    def old() -> None:
        found[0] = plain(view, chosen, tokens, temperature)

    def new() -> None:
        found[1] = score(view, chosen, tokens, [], laws)

    row = pairs(lambda: timed(old), lambda: timed(new))
    got: Scores = found[1]
    gap = abs(torch.stack([torch.tensor(got.accept_given_path), torch.tensor(got.accept_prob)])
              - found[0]).max()  # fmt: skip
    if not gap <= SAME:
        raise SystemExit(f"the two ways differ by {gap:.3g} at T={temperature:g}")
    return {
        "temperature": temperature,
        "exits": num_exits,
        "positions": len(tokens),
        "agreement": float(got.is_argmax.mean()),
        "plain_ms_a_token": 1e3 * row["first_s"] / len(tokens),
        "ms_a_token": 1e3 * row["second_s"] / len(tokens),
        **{name: row[name] for name in ("ratio", "low", "high")},
    }


def share_row(setting: Setting, temperature: float, num_exits: int) -> dict[str, Any]:
    """Seconds of observing eight paths in eight rows, and the share that is heads."""
    view = setting.loaded.view
    exits = range(view.num_layers - 1 - num_exits, view.num_layers - 1)
    jobs = jobs_of(setting.loaded, TOKENS, temperature)
    spent = 0.0
    real = observing.score

    def counted(*given: Any) -> Scores:
        nonlocal spent
        begin = time.perf_counter()
        try:
            return real(*given)
        finally:
            spent += time.perf_counter() - begin

    shares, seconds = [], []
    observing.score = counted
    try:
        for _ in range(3):
            spent = 0.0
            seconds.append(timed(lambda: observe(setting, jobs, exits)))
            shares.append(spent / seconds[-1])
    finally:
        observing.score = real
    tokens = TOKENS * len(jobs)
    return {
        "temperature": temperature,
        "exits": num_exits,
        "ms_a_token": 1e3 * statistics.median(seconds) / tokens,
        "heads_share": statistics.median(shares),
        "low": min(shares),
        "high": max(shares),
    }


def rows_together(setting: Setting, temperature: float) -> dict[str, Any]:
    """Tokens a second of plain decoding, paths one after another and eight side by side."""
    row = pairs(
        lambda: seconds_a_token(setting, temperature, 2, 1),
        lambda: seconds_a_token(setting, temperature, 8, 8),
    )
    return {
        "temperature": temperature,
        "tokens_a_second_1": 1 / row["first_s"],
        "tokens_a_second_8": 1 / row["second_s"],
        **{name: row[name] for name in ("ratio", "low", "high")},
    }


def seconds_a_token(setting: Setting, temperature: float, count: int, rows: int) -> float:
    """Seconds a token of the steps alone of `count` paths in `rows` rows; prompts are not timed."""
    jobs = jobs_of(setting.loaded, TOKENS, temperature)[:count]
    decoder = BatchDecoder(
        setting.loaded.view,
        [setting.job(job.request) for job in jobs],
        [setting.policy(job.request, temperature) for job in jobs],
        rows=rows,
    )
    decoder.prefill()
    spent, made = 0.0, 0
    while decoder.running:
        made += len(decoder.running)
        spent += timed(decoder.step)
        if not decoder.running:
            decoder.refill()
    return spent / made


def table(title: str, columns: Sequence[tuple[str, str]], rows: Sequence[dict[str, Any]]) -> str:
    """Markdown table; a column is (heading, format of the row)."""
    lines = [f"**{title}**", "", " | ".join(["", *(name for name, _ in columns), ""]).strip()]
    lines.append("|" + "---|" * len(columns))
    for row in rows:
        lines.append("| " + " | ".join(form.format(**row) for _, form in columns) + " |")
    return "\n".join([*lines, ""])


SPREAD = "{ratio:.2f} ({low:.2f} to {high:.2f})"
TABLES: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "score": (
        "Scoring a stretch: plain ÷ ours",
        [("T", "{temperature:g}"), ("exits", "{exits}"), ("agree", "{agreement:.2f}"),
         ("plain, ms a token", "{plain_ms_a_token:.2f}"), ("ours", "{ms_a_token:.2f}"),
         ("ratio", SPREAD)],
    ),
    "observe": (
        "Observing eight regenerated paths in eight rows",
        [("T", "{temperature:g}"), ("exits", "{exits}"), ("ms a token", "{ms_a_token:.2f}"),
         ("heads", "{heads_share:.0%} ({low:.0%} to {high:.0%})")],
    ),
    "rows": (
        "Regeneration: tokens a second in one row and in eight",
        [("T", "{temperature:g}"), ("1 row", "{tokens_a_second_1:.1f}"),
         ("8 rows", "{tokens_a_second_8:.1f}"), ("ratio", SPREAD)],
    ),
}  # fmt: skip


def measured(setting: Setting, name: str) -> list[dict[str, Any]]:
    """Rows of one table."""
    if name == "rows":
        return [rows_together(setting, temperature) for temperature in TEMPERATURES]
    row = score_row if name == "score" else share_row
    return [row(setting, t, num_exits) for t in TEMPERATURES for num_exits in NUM_EXITS]


def main() -> None:
    """Measure, print tables, write JSON; tables that are not measured now stay in the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--engine", default="eager", choices=ENGINES)
    parser.add_argument("--only", choices=TABLES, nargs="*", default=list(TABLES))
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    loaded = load_model(LoadOptions(model=given.model, engine=given.engine, rows=len(TEXTS)))
    setting = Setting(loaded=replace(loaded, eos_ids=frozenset()))  # paths of equal length
    found: dict[str, Any] = {name: measured(setting, name) for name in given.only}
    for name in given.only:
        print(f"engine {loaded.view.engine}, {torch.get_num_threads()} threads")
        print(table(*TABLES[name], found[name]))
    if given.json:
        known = json.loads(given.json.read_text("utf-8")) if given.json.exists() else {}
        own = {"num_layers": loaded.view.num_layers, "threads": torch.get_num_threads()}
        known[loaded.view.engine] = known.get(loaded.view.engine, {}) | own | found
        given.json.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
