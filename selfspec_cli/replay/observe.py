"""Observe paths: one pass gives the acceptance law of every exit layer (METHOD.md §2, §3).

A regenerated path is decoded by the target, some rows side by side while others wait for a row, and
observed while it is decoded: the layer states are there anyway. A recorded path takes one
teacher-forced pass. Either way states are scored and dropped in short stretches, so memory does not
grow with the output.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

import torch
from torch import Tensor

from selfspec_cli.engine.batch import BatchDecoder
from selfspec_cli.engine.decoder import PREFILL_CHUNK
from selfspec_cli.records import Finish, PathSource, PreparedRequest
from selfspec_cli.replay.score import MAX_CHUNK, Scores, score
from selfspec_cli.replay.setting import Setting
from selfspec_cli.replay.stretches import Stretches


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
    rows: int | None = None,
) -> list[ObservedPath]:
    """Observe one group of paths, all recorded or all regenerated.

    Args:
        setting: model and choices.
        jobs: paths of one source with a budget of at least one token.
        exit_layers: E depths to score.
        tick: told the output tokens done since the last call.
        rows: regenerated paths that are decoded side by side; all of them unless given. The others
            follow in order as rows become free.
    """
    if jobs[0].source == "recorded":
        return [_observe_recorded(setting, job, exit_layers, tick) for job in jobs]
    batch = _Batch(setting, jobs, exit_layers, min(rows or len(jobs), len(jobs)))
    batch.run(tick)
    return batch.paths()


class _Batch:
    """Regenerated paths under way: a decoder, the states it leaves and the scores so far."""

    def __init__(
        self, setting: Setting, jobs: Sequence[PathJob], exit_layers: Sequence[int], rows: int
    ) -> None:
        self._view, self._jobs, self._rows = setting.loaded.view, jobs, rows
        self._decoder = BatchDecoder(
            self._view,
            [setting.job(job.request) for job in jobs],
            [setting.policy(job.request, job.temperature) for job in jobs],
            rows=rows,
        )
        self._laws = [setting.laws(job.request, job.temperature) for job in jobs]
        depths = [*exit_layers, self._view.num_layers]
        self._states = Stretches(self._view, depths, rows, MAX_CHUNK)
        self._parts: list[list[Scores]] = [[] for _ in jobs]

    def run(self, tick: Callable[[int], None]) -> None:
        """Decode and score every path to its end."""
        decoder = self._decoder
        decoder.prefill(self._first)
        while True:
            self._score()
            running = decoder.running
            if self._may_refill(len(running)):
                decoder.refill(self._first)
                continue
            if not running:
                break
            tick(len(running))
            decoder.step(self._states.writer(running))

    def paths(self) -> list[ObservedPath]:
        """What was observed, in the order of the jobs."""
        ends = zip(
            self._jobs, self._decoder.outputs, self._decoder.finishes, self._parts, strict=True
        )
        return [
            ObservedPath(
                job=job,
                tokens=tuple(output),
                finish=finish or "unknown",
                scores=Scores.join(parts),
            )
            for job, output, finish, parts in ends
        ]

    def _may_refill(self, num_running: int) -> bool:
        """Whether the free rows are just what the next waiting prompts take.

        Paths of one prompt, one a temperature, share one run of it if they begin together, which
        saves more than a row that stays free for a few steps costs.
        """
        waiting = self._jobs[len(self._jobs) - self._decoder.num_waiting :]
        if not waiting or num_running == 0:
            return bool(waiting)
        prompts = groupby(waiting, key=lambda job: job.request.prompt_token_ids)
        return self._rows - num_running in accumulate(len(list(own)) for _, own in prompts)

    def _first(self, job: int, depth: int, hidden: Tensor) -> None:
        """Keep the state of a job's last prompt position."""
        if job not in self._states.jobs:
            if self._states.is_full:  # of a job that ended with its first token, just now
                self._score()
            self._states.begin(job)
        self._states.put_first(job, depth, hidden)

    def _score(self) -> None:
        """Score the stretches of jobs that ended or can hold no further state."""
        for job in self._states.jobs:
            ended = self._decoder.finishes[job] is not None
            if ended or self._states.is_complete(job):
                self._score_one(job)
            if ended:
                self._states.release(job)

    def _score_one(self, job: int) -> None:
        done = sum(len(part.zero_prob) for part in self._parts[job])
        output = self._decoder.outputs[job]
        if len(output) == done:  # its prompt is run, its first token not yet chosen
            return
        held = self._states.take(job)
        part = score(self._view, held, output[done:], output[:done], self._laws[job])
        self._parts[job].append(part)


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
