"""What bench.csv says: speed, times, costs and slow requests by bucket, batch size and arm.

Speedup is decode time, prefill excluded: Σ plain seconds ÷ Σ seconds over the requests that both
arms decoded. At temperature 0 both commit the same tokens. At temperature > 0 they draw their own,
so each request's plain time is first scaled to as many tokens (time per committed token).
Intervals are 95 % delete-one-group jackknife intervals: repeats are averaged first, and a
conversation or a repeated prompt counts once. Whole batches have no requests of their own, so the
repeat is the unit there: those intervals are of the timing, and no verdict rests on them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from selfspec_cli.analysis.accepted_lengths import AcceptedLengths
from selfspec_cli.analysis.intervals import RatioInterval
from selfspec_cli.bench.latency_table import Latencies, latencies
from selfspec_cli.bench.lengths import measured_lengths
from selfspec_cli.bench.paired import BUCKET, averaged, bucket_of_row, checked_rows, pair
from selfspec_cli.bench.slower import SlowRequest, slow_requests
from selfspec_cli.bench.speed import Traffic, block_speedup, speedup, tokens_per_second
from selfspec_cli.bench.taken import Taken
from selfspec_cli.buckets import BucketKey
from selfspec_cli.errors import ConfigError

AR, PLAN, FORCED = "ar", "plan", "forced"
GENERATE, PROMPT_LOOKUP, EARLY_EXIT = "generate", "prompt_lookup", "early_exit_hf"
ARMS = (AR, PLAN, FORCED, PROMPT_LOOKUP, EARLY_EXIT, GENERATE)
"""Arms in the order of every table; others follow by name."""
RIVALS = (PROMPT_LOOKUP, EARLY_EXIT)
"""Run by another library: judged against its own plain decoding too."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """One arm at one batch size: in one bucket, or over all of them."""

    bucket: BucketKey | None
    """None for the total over all buckets."""
    batch_size: int
    arm: str
    exit_layer: int | None
    """None where the arm has none, or several."""
    draft_length: int | None
    num_speculating: int
    """Requests that the arm drafted for; a plan decodes plainly where its rule is off."""
    num_buckets: int
    num_requests: int
    num_tokens: int
    """Committed tokens after the first of each request, repeats included."""
    tokens_per_second: float | None
    """Σ tokens ÷ Σ decode seconds; for larger batches of whole batches only."""
    speedup: RatioInterval
    """Over plain decoding of this engine; of whole batches the interval is over repeats."""
    own_speedup: RatioInterval | None
    """Over the other library's own plain decoding; None where the arm is ours."""
    latencies: Latencies
    cost_per_1000_tokens: float | None
    """In the unit of the price, decode time only; missing without a price."""
    lengths: AcceptedLengths | None
    """Accepted tokens per round; None in totals and where no rounds were counted."""
    peak_memory_bytes: int | None
    num_checked: int
    """Requests, or buckets of whole batches, whose output was compared with plain decoding."""
    num_differ: int
    num_compared: int
    """Requests that the baseline decoded too."""
    slower: tuple[SlowRequest, ...]
    """Of these, slower than 1.05 times their own baseline; slowest first."""

    @property
    def whole_batches(self) -> bool:
        """Whether its speed is of whole batches, whose requests cannot be told apart."""
        return self.batch_size > 1

    @property
    def two_peaks(self) -> bool:
        """Whether rounds mostly accept all or nothing."""
        return self.lengths is not None and self.lengths.two_peaks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BenchSummary:
    """All numbers of a bench, in the order of its tables."""

    buckets: tuple[BucketKey, ...]
    """The largest first."""
    batch_sizes: tuple[int, ...]
    arms: tuple[str, ...]
    lines: tuple[Line, ...]
    totals: tuple[Line, ...]
    """By batch size and arm, weighted by traffic."""
    weighted_by: str
    """What a bucket weighs in totals, a phrase."""
    price_per_hour: float | None
    engines: tuple[str, ...]
    taken: Taken | None = None
    """How much of what was planned this is; None where that is not known."""

    def total(self, arm: str, batch_size: int | None = None) -> Line | None:
        """Return an arm's total, at the smallest batch size unless told; None if not decoded."""
        if batch_size is None:
            batch_size = min(self.batch_sizes, default=1)
        return next((t for t in self.totals if (t.arm, t.batch_size) == (arm, batch_size)), None)

    def line(self, bucket: BucketKey, arm: str, batch_size: int) -> Line | None:
        """Return an arm in a bucket, None where it was not decoded."""
        wanted = (bucket, arm, batch_size)
        return next((n for n in self.lines if (n.bucket, n.arm, n.batch_size) == wanted), None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Decodes:
    """What was measured, each frame with its buckets."""

    rows: pd.DataFrame
    """As measured."""
    requests: pd.DataFrame
    """One row a request."""
    batches: pd.DataFrame
    """One row a bucket, of whole batches."""
    pairs: Mapping[tuple[bool, str, str], pd.DataFrame]
    """Rows of an arm beside its baseline, by (whole batches, arm, baseline); of whole batches one
    a repeat."""

    def of(self, bucket: BucketKey) -> "_Decodes":
        def own(frame: pd.DataFrame) -> pd.DataFrame:
            return frame.loc[frame["bucket"] == bucket]

        return _Decodes(
            rows=own(self.rows),
            requests=own(self.requests),
            batches=own(self.batches),
            pairs={key: own(frame) for key, frame in self.pairs.items()},
        )

    def timed(self, key: tuple[int, str]) -> pd.DataFrame:
        """Rows that carry speed: requests decoded together overlap, so whole batches above 1."""
        return _at(self.requests if key[0] == 1 else self.batches, key)

    def paired(self, key: tuple[int, str], baseline: str, *, whole: bool) -> pd.DataFrame:
        """The arm's requests, or whole batches, beside the baseline's."""
        return _at(self.pairs[whole, key[1], baseline], key)

    def speedup(
        self, key: tuple[int, str], baseline: str, traffic: Traffic | None
    ) -> RatioInterval:
        """Over a baseline: of requests alone, or of whole batches above 1."""
        if key[0] == 1:
            return speedup(self.paired(key, baseline, whole=False), traffic)
        return block_speedup(self.paired(key, baseline, whole=True), traffic)


def summarise(
    table: pd.DataFrame,
    price_per_hour: float | None,
    *,
    traffic: Traffic | None = None,
    taken: Taken | None = None,
) -> BenchSummary:
    """Return the summary of a bench.

    Args:
        table: bench.csv, one row a (request, arm, batch size, repeat); rows without request_id
            are whole batches.
        price_per_hour: of the machine, in any currency; None leaves costs out.
        traffic: tokens of each bucket in the log, any scale, for totals; a bucket that it lacks
            weighs nothing. None weighs a bucket by the requests measured in it.
        taken: how much of what was planned the table is.

    Raises:
        StorageError: a column is missing or holds what is no measurement.
        ConfigError: the price is negative or not finite.
    """
    if price_per_hour is not None and not (math.isfinite(price_per_hour) and price_per_hour >= 0):
        raise ConfigError("the price must be 0 or more", where="--price-per-hour")
    decodes = _decodes(table)
    buckets = _by_size(decodes, traffic)
    every = [(bucket, decodes.of(bucket)) for bucket in buckets]
    lines = [_line(own, bucket, key, price_per_hour) for bucket, own in every for key in _keys(own)]
    totals = [_line(decodes, None, key, price_per_hour, traffic) for key in _keys(decodes)]
    return BenchSummary(
        buckets=tuple(buckets),
        batch_sizes=tuple(sorted({line.batch_size for line in lines})),
        arms=tuple(sorted({line.arm for line in lines}, key=_arm_order)),
        lines=tuple(lines),
        totals=tuple(totals),
        weighted_by=_weighted_by(buckets, traffic),
        price_per_hour=price_per_hour,
        engines=tuple(sorted(set(table["engine"].dropna().astype(str)))),
        taken=taken,
    )


def _decodes(table: pd.DataFrame) -> _Decodes:
    rows = checked_rows(table)
    whole = rows["request_id"] == ""
    blocks = averaged(rows.loc[whole], by_repeat=True)
    frames = (rows, averaged(rows.loc[~whole]), averaged(rows.loc[whole]), blocks)
    own, requests, batches, repeats = (_with_bucket(frame) for frame in frames)
    pairs = {
        (whole_batches, arm, baseline): pair(frame, arm, baseline)
        for whole_batches, frame in ((False, requests), (True, repeats))
        for arm in sorted(set(own["arm"]))
        for baseline in (AR, GENERATE)
    }
    return _Decodes(rows=own, requests=requests, batches=batches, pairs=pairs)


def _with_bucket(frame: pd.DataFrame) -> pd.DataFrame:
    found = [bucket_of_row(row) for row in frame[BUCKET].to_dict("records")]
    return frame.assign(bucket=pd.Series(found, index=frame.index, dtype=object))


def _by_size(decodes: _Decodes, traffic: Traffic | None) -> list[BucketKey]:
    """Buckets by tokens of traffic, else by plain decode time measured; ties by name."""
    plain = decodes.requests.loc[decodes.requests["arm"] == AR]
    found = set(decodes.rows["bucket"])
    seconds = {bucket: plain.loc[plain["bucket"] == bucket, "seconds"].sum() for bucket in found}
    size = seconds if traffic is None else {bucket: traffic.get(bucket, 0.0) for bucket in found}
    return sorted(found, key=lambda bucket: (-size[bucket], bucket.sort_key))


def _weighted_by(buckets: Sequence[BucketKey], traffic: Traffic | None) -> str:
    if traffic is None:
        return "the measured requests"
    none = sum(traffic.get(bucket, 0.0) <= 0 for bucket in buckets)
    lacking = f" ({none} of {len(buckets)} buckets had none there and weigh nothing)"
    return f"the log's tokens{lacking if none else ''}"


def _keys(decodes: _Decodes) -> list[tuple[int, str]]:
    pairs = {
        (int(b), str(a)) for b, a in decodes.rows[["batch_size", "arm"]].itertuples(index=False)
    }
    return sorted(pairs, key=lambda key: (key[0], _arm_order(key[1])))


def _arm_order(arm: str) -> tuple[int, str]:
    return (ARMS.index(arm) if arm in ARMS else len(ARMS), arm)


def _line(
    decodes: _Decodes,
    bucket: BucketKey | None,
    key: tuple[int, str],
    price: float | None,
    traffic: Traffic | None = None,
) -> Line:
    batch_size, arm = key
    rows, requests = _at(decodes.rows, key), _at(decodes.requests, key)
    speed = tokens_per_second(decodes.timed(key), traffic)
    compared = _compared(decodes, key)
    exact = pd.concat([requests["exact"], _at(decodes.batches, key)["exact"]])
    return Line(
        bucket=bucket,
        batch_size=batch_size,
        arm=arm,
        exit_layer=_only(rows["exit_layer"]),
        draft_length=_only(rows["draft_length"]),
        num_speculating=int(requests["draft_length"].notna().sum()),
        num_buckets=rows["bucket"].nunique(),
        num_requests=len(requests),
        num_tokens=int(rows["committed"].sum()),
        tokens_per_second=speed,
        speedup=decodes.speedup(key, AR, traffic),
        own_speedup=decodes.speedup(key, GENERATE, traffic) if arm in RIVALS else None,
        latencies=latencies(requests),
        cost_per_1000_tokens=None if price is None or speed is None else price / 3.6 / speed,
        lengths=None if bucket is None else measured_lengths(rows),
        peak_memory_bytes=_highest(rows["peak_memory_bytes"]),
        num_checked=int(exact.notna().sum()),
        num_differ=int((exact == 0).sum()),
        num_compared=len(compared),
        slower=_slower(compared),
    )


def _at(rows: pd.DataFrame, key: tuple[int, str]) -> pd.DataFrame:
    return rows.loc[(rows["batch_size"] == key[0]) & (rows["arm"] == key[1])]


def _compared(decodes: _Decodes, key: tuple[int, str]) -> pd.DataFrame:
    """The arm's requests with a time beside their baseline's; none for a baseline itself."""
    if key[1] in (AR, GENERATE):
        return decodes.requests.iloc[:0]
    both = decodes.paired(key, GENERATE if key[1] in RIVALS else AR, whole=False)
    return both.loc[(both["plain_request"] > 0) & both["request_seconds"].notna()]


def _slower(compared: pd.DataFrame) -> tuple[SlowRequest, ...]:
    """Each request against what is usual in its own bucket; the slowest of all first."""
    if compared.empty:
        return ()
    found = [one for _, rows in compared.groupby("bucket") for one in slow_requests(rows)]
    return tuple(sorted(found, key=lambda one: (-one.ratio, one.request_id)))


def _only(column: pd.Series) -> int | None:
    values = column.dropna().unique()
    return int(values[0]) if len(values) == 1 else None


def _highest(column: pd.Series) -> int | None:
    return int(column.max()) if column.notna().any() else None
