"""From trace files to the requests of this run, before any weights are loaded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from selfspec_cli.config import CalibrateConfig, resolve_trace
from selfspec_cli.engine.limits import context_limit, limit_reason
from selfspec_cli.engine.load import LoadOptions
from selfspec_cli.errors import ConfigError
from selfspec_cli.records import PreparedRequest, Skip
from selfspec_cli.storage import RunDir
from selfspec_cli.storage.place import MANIFEST
from selfspec_cli.trace import PrepareOptions, prepare, read_traces, sample_requests, task_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """The sampled requests and what became of every row read."""

    requests: tuple[PreparedRequest, ...]
    num_read: int
    skips: tuple[Skip, ...]
    num_left_out: int
    """Usable requests beyond `limit`, not drawn."""
    notes: tuple[str, ...]
    """Sentences for people about rows that were used, with counts."""
    counts: Mapping[str, int]
    """The same as numbers (`trace.Prepared.counts`), for example `max_tokens_defaulted`,
    `recounted` and `recount_differs`; of all usable requests, also of those not drawn."""
    trace_paths: tuple[Path, ...]


def load_options(config: CalibrateConfig) -> LoadOptions:
    """How the configured model is loaded.

    Raises:
        ConfigError: the chat template file cannot be read.
    """
    template = None
    if config.chat_template is not None:
        try:
            template = Path(config.chat_template).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"cannot read the chat template: {error}", where="--chat-template"
            ) from None
    return LoadOptions(
        model=config.model,
        tokenizer=config.tokenizer,
        dtype=config.dtype,
        device=config.device,
        device_map=config.device_map,
        chat_template=template,
        engine=config.engine,
        rows=max(config.observe_batch, *config.batch_sizes),
    )


def trace_paths(config: CalibrateConfig) -> tuple[Path, ...]:
    """Trace files of the config, `sample` resolved."""
    return tuple(resolve_trace(name) for name in config.traces)


def template_time(config: CalibrateConfig, *, fresh: bool = False) -> datetime:
    """The moment that chat templates take for now: when the run in `out` began, else the present.

    Raises:
        RunDirError: the folder's manifest cannot be read.
    """
    if not fresh and (Path(config.out) / MANIFEST).is_file():
        begun = RunDir.load(Path(config.out)).manifest.get("template_time")
        if isinstance(begun, str):
            return datetime.fromisoformat(begun)
    return datetime.now().replace(microsecond=0)


def load_inputs(
    config: CalibrateConfig,
    tokenizer: Any,
    model_config: Any,
    *,
    eos: Sequence[int] = (),
    now: datetime | None = None,
) -> Inputs:
    """Read, prepare and sample the traces.

    Args:
        config: the calibration.
        tokenizer: of the model.
        model_config: of the model.
        eos: ids that end an answer; none for the tokenizer's own.
        now: what chat templates take for the present; None for the real one.

    Raises:
        TraceError: a file cannot be read, no request of it can be used, or `task_from` finds
            no task in any of them.
    """
    paths = trace_paths(config)
    tasks = None if config.task_from is None else task_source(config.task_from)
    read = read_traces(paths, tasks)
    options = PrepareOptions(
        max_context=context_limit(model_config),
        context_unit=limit_reason(model_config),
        max_tokens_cap=config.max_tokens,
        default_max_tokens=config.default_max_tokens,
        vocab_size=int(model_config.vocab_size),
        eos_token_ids=tuple(eos),
        template_time=now,
    )
    prepared = prepare(read.requests, tokenizer, options)
    # Not by config.context_edges: an analysis key must not change which requests were measured.
    sample = sample_requests(prepared.requests, config.limit, config.seed)
    return Inputs(
        requests=sample.requests,
        num_read=len(read.requests) + len(read.skips),
        skips=(*read.skips, *prepared.skips),
        num_left_out=sample.num_left_out,
        notes=(*read.notes, *prepared.notes),
        counts=prepared.counts,
        trace_paths=paths,
    )
