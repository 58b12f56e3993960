"""Trace files to prepared requests; no torch, no transformers."""

from selfspec_cli.trace.encode import Encoder, TokenizerLike
from selfspec_cli.trace.prepare import DEFAULT_MAX_TOKENS, Prepared, PrepareOptions, prepare
from selfspec_cli.trace.registry import TraceFile, TraceRead, read_traces
from selfspec_cli.trace.sample import Sample, StratumCount, sample_requests
from selfspec_cli.trace.skips import SkipCount, describe_skips, skip_document, summarise_skips
from selfspec_cli.trace.tasks import TaskSource, task_source

__all__ = [
    "DEFAULT_MAX_TOKENS",
    "Encoder",
    "PrepareOptions",
    "Prepared",
    "Sample",
    "SkipCount",
    "StratumCount",
    "TaskSource",
    "TokenizerLike",
    "TraceFile",
    "TraceRead",
    "describe_skips",
    "prepare",
    "read_traces",
    "sample_requests",
    "skip_document",
    "summarise_skips",
    "task_source",
]
