"""Observe paths: one pass gives the acceptance law of every exit layer (METHOD.md §2, §3).

A regenerated path is decoded by the target, a batch of rows at a time, and observed while it is
decoded: the layer states are there anyway. A recorded path takes one teacher-forced pass. Either
way states are scored and dropped in short stretches, so memory does not grow with the output.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import PREFILL_CHUNK
from selfspec_cli.records import Finish, PathSource, PreparedRequest
from selfspec_cli.replay.score import MAX_CHUNK, Scores, score
from selfspec_cli.replay.setting import Setting

STATE_BYTES = 64 << 20  # of kept layer states per batch, before they are scored


@dataclass(frozen=True, slots=True, kw_only=True)
class PathJob:
    """One path to observe: a request at a temperature."""

    request: PreparedRequest
    temperature: float
    source: PathSource

    @property
    def path_id(self) -> str:
        """Unique within a run."""
        return f"{self.request.request_id}|T={self.temperature:g}"

    @property
    def budget(self) -> int:
        """Output tokens the decoder was allowed on this path (records §budget of the walk).

        A recorded text whose end is unknown may have been cut anywhere, so it is read as having
        used up its budget.
        """
        recorded = self.request.completion_token_ids
        if self.source == "recorded" and recorded is not None:
            ended = self.request.finish in ("eos", "stop")
            return self.request.max_tokens if ended else len(recorded)
        return self.request.max_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPath:
    """A path with its scores at every exit layer."""

    job: PathJob
    tokens: tuple[int, ...]
    finish: Finish
    scores: Scores
    """Of all n output positions; position 0 is prefill's and is never drafted."""


def observe(
    setting: Setting,
    jobs: Sequence[PathJob],
    exit_layers: Sequence[int],
    tick: Callable[[int], None] = lambda _: None,
) -> list[ObservedPath]:
    """Observe one batch of paths, all recorded or all regenerated.

    Args:
        setting: model and choices.
        jobs: paths of one source with a budget of at least one token.
        exit_layers: E depths to score.
        tick: told the output tokens done since the last call.
    """
    if jobs[0].source == "recorded":
        return [_observe_recorded(setting, job, exit_layers, tick) for job in jobs]
    return _observe_regenerated(setting, jobs, exit_layers, tick)


class _States:
    """Layer states of B rows over a short stretch of output positions, [E + 1, B, stretch, H]."""

    def __init__(self, setting: Setting, depths: Sequence[int], rows: int) -> None:
        view = setting.loaded.view
        size = len(depths) * rows * view.hidden_size * view.dtype.itemsize
        self.stretch = max(1, min(MAX_CHUNK, STATE_BYTES // size))
        self._index = {depth: at for at, depth in enumerate(depths)}
        self.held = torch.empty(
            len(depths), rows, self.stretch, view.hidden_size, dtype=view.dtype, device=view.device
        )

    def put(self, depth: int, column: int, hidden: Tensor, jobs: Sequence[int]) -> None:
        """Keep the states [len(jobs), 1, H] of a depth if it is wanted, each with its job's."""
        at = self._index.get(depth)
        if at is not None:
            self.held[at, list(jobs), column] = hidden[:, 0]


def _observe_regenerated(
    setting: Setting,
    jobs: Sequence[PathJob],
    exit_layers: Sequence[int],
    tick: Callable[[int], None],
) -> list[ObservedPath]:
    view = setting.loaded.view
    decoder = BatchDecoder(
        view,
        [setting.job(job.request) for job in jobs],
        [setting.policy(job.request, job.temperature) for job in jobs],
    )
    laws = [setting.laws(job.request, job.temperature) for job in jobs]
    states = _States(setting, [*exit_layers, view.num_layers], len(jobs))
    parts: list[list[Scores]] = [[] for _ in jobs]
    decoder.prefill(lambda row, depth, hidden: states.put(depth, 0, hidden, [row]))
    done, column = 0, 1  # positions scored of every row, states held of every row
    while True:
        if column == states.stretch or not decoder.live:
            for row, output in enumerate(decoder.outputs):
                new = output[done : done + column]
                if new:
                    held = states.held[:, row, : len(new)]
                    parts[row].append(score(view, held, new, output[:done], laws[row]))
            done, column = done + column, 0
        if not decoder.live:
            break
        at, running = column, decoder.running
        tick(len(running))
        decoder.step(lambda d, h, at=at, jobs=running: states.put(d, at, h, jobs))  # type: ignore[misc]
        column += 1
    return [
        ObservedPath(
            job=job,
            tokens=tuple(output),
            finish=finish or "unknown",
            scores=Scores.join(own),
        )
        for job, output, finish, own in zip(
            jobs, decoder.outputs, decoder.finishes, parts, strict=True
        )
    ]


@torch.inference_mode()
def _observe_recorded(
    setting: Setting,
    job: PathJob,
    exit_layers: Sequence[int],
    tick: Callable[[int], None],
) -> ObservedPath:
    view, tokens = setting.loaded.view, list(job.request.completion_token_ids or ())
    laws = setting.laws(job.request, job.temperature)
    parts, done = [], 0
    for held in forced_states(setting, job.request.prompt_token_ids, tokens, exit_layers):
        new = tokens[done : done + held.shape[1]]
        parts.append(score(view, held, new, tokens[:done], laws))
        done += len(new)
        tick(len(new))
    return ObservedPath(
        job=job, tokens=tuple(tokens), finish=job.request.finish, scores=Scores.join(parts)
    )


def forced_states(
    setting: Setting, prompt: Sequence[int], tokens: Sequence[int], exit_layers: Sequence[int]
) -> Iterator[Tensor]:
    """Yield states [E + 1, m, H] that predict successive stretches of `tokens`, teacher-forced."""
    view = setting.loaded.view
    depths = [*exit_layers, view.num_layers]
    cache = view.new_cache(capacity=len(prompt) + len(tokens))
    for at in range(0, len(prompt) - 1, PREFILL_CHUNK):
        piece = prompt[at : min(at + PREFILL_CHUNK, len(prompt) - 1)]
        _forward(setting, cache, piece, {})
    inputs = [prompt[-1], *tokens[:-1]]
    for at in range(0, len(inputs), MAX_CHUNK):
        found: dict[int, Tensor] = dict.fromkeys(depths, torch.empty(0))
        _forward(setting, cache, inputs[at : at + MAX_CHUNK], found)
        yield torch.stack([found[depth] for depth in depths])


def _forward(setting: Setting, cache: object, tokens: Sequence[int], found: dict) -> None:
    view = setting.loaded.view

    def tap(depth: int, hidden: Tensor) -> None:
        if depth in found:
            found[depth] = hidden[0]

    ids = torch.tensor([list(tokens)], device=view.device)
    view.run(view.embed(ids, cache), cache, 0, view.num_layers, tap)  # type: ignore[arg-type]
