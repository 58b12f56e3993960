"""A machine that slows down favours nobody (B07), and short parts are repeated."""

import numpy as np
import pytest
from cost_helpers import Till
from scipy import stats

from selfspec_cli.cost.measure import (
    MIN_SAMPLE_S,
    block_order,
    repeats_for,
    sample,
    time_block,
    warm_up,
)
from selfspec_cli.cost.parts import Task

MS = 1_000_000
BLOCKS = 10


class SlowingMachine:
    """Each run takes 1 % longer than the one before; it does not know whose run it is."""

    def __init__(self) -> None:
        self.till, self.next_ns = Till(), 10.0 * MS

    def run(self) -> None:
        self.till.charge(round(self.next_ns))
        self.next_ns *= 1.01


def ratio_and_interval(seconds: np.ndarray) -> tuple[float, float, float]:
    """Candidate ÷ baseline over pairs of blocks [P, 2, 2], with the 95 % t interval of its log."""
    logs = np.log(seconds[:, :, 1].sum(axis=1) / seconds[:, :, 0].sum(axis=1))
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / np.sqrt(len(logs))
    return tuple(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]))


def null_test(orders: list[list[int]]) -> tuple[float, float, float]:
    machine = SlowingMachine()
    tasks = [Task(part=name, step=machine.run) for name in ("baseline", "baseline again")]
    clock = machine.till.clock()
    seconds = [time_block(tasks, [1, 1], clock, order) for order in orders]
    return ratio_and_interval(np.array(seconds).reshape(-1, 2, 2))


@pytest.mark.parametrize("seed", range(5))
def test_baseline_against_itself_is_one(seed: int) -> None:
    """Deterministic: the only drift is 1 % a run, and ABBA cancels it to second order."""
    ratio, low, high = null_test([block_order(2, block, seed) for block in range(BLOCKS)])
    assert ratio == pytest.approx(1.0, abs=1e-3), f"ratio {ratio:.5f}"
    assert low <= 1.0 + 1e-4, f"{low:.5f} to {high:.5f} claims a slowdown"
    assert high >= 1.0 - 1e-4, f"{low:.5f} to {high:.5f} claims a speedup"


def test_all_baseline_first_fails_the_null_test() -> None:
    """Broken twin: one half of the measurement runs on the hotter machine."""
    machine = SlowingMachine()
    clock = machine.till.clock()
    halves = [[clock.span(machine.run) for _ in range(BLOCKS)] for _ in range(2)]
    seconds = np.array(halves).T.reshape(-1, 2, 2)
    ratio, low, _ = ratio_and_interval(seconds)
    assert low > 1.05, f"the twin passed: ratio {ratio:.3f}, from {low:.3f}"


def test_a_fixed_order_fails_the_null_test() -> None:
    """Broken twin: A before B in every block is 1 % off, ten times what ABBA leaves."""
    ratio, low, _ = null_test([[0, 1]] * BLOCKS)
    assert low > 1.005, f"the twin passed: ratio {ratio:.4f}, from {low:.4f}"


def test_every_block_runs_every_task_once_in_an_order_of_its_own() -> None:
    orders = [block_order(30, block, seed=4) for block in range(6)]
    assert all(sorted(order) == list(range(30)) for order in orders)
    assert [orders[i + 1] == orders[i][::-1] for i in (0, 2, 4)] == [True] * 3
    assert orders[0] != orders[2], "pairs of blocks share one order"
    assert orders[0] != block_order(30, 0, seed=5), "the seed does not matter"
    assert orders[3] == block_order(30, 3, seed=4), "a resumed run must keep the order"


@pytest.mark.parametrize(
    ("seconds", "calls"),
    [
        (1e-3, 2),
        (0.3e-3, 7),
        (2e-3, 3),
        (15e-3, 3),
        (25e-3, 2),
        (40e-3, 1),
        (5.0, 1),
        (1e-9, 1000),
        (0.0, 1000),
    ],
)
def test_parts_are_repeated_to_two_milliseconds_and_passes_thrice(
    seconds: float, calls: int
) -> None:
    assert repeats_for(seconds) == calls
    if calls < 1000:
        assert calls * seconds >= MIN_SAMPLE_S


def test_a_sample_is_divided_by_its_calls_and_restores_between_them() -> None:
    till, events = Till(), []

    def step() -> None:
        events.append("step")
        till.charge(MS // 2)

    def restore() -> None:
        events.append("restore")
        till.charge(100 * MS)  # never part of a sample

    task = Task(part="a", step=step, restore=restore)
    assert sample(task, 4, till.clock()) == pytest.approx(0.5e-3, abs=1e-8)
    assert events == ["step", "restore"] * 4
    assert sample(Task(part="b", step=step), 4, till.clock()) == pytest.approx(0.5e-3, abs=1e-8)


def test_warm_up_ends_when_plain_steps_are_steady() -> None:
    """Plain steps fall from 40 ms to 10 ms over 12 calls; a slow start must not size samples."""
    till, plain, small = Till(), [], []

    def plain_step() -> None:
        plain.append(0)
        till.charge(max(10 * MS, 40 * MS - 2.5 * MS * len(plain)).__round__())

    def small_step() -> None:
        small.append(0)
        till.charge(5 * MS if len(small) == 1 else MS // 4)  # the first call builds something

    tasks = [Task(part="ar", step=plain_step), Task(part="embed", step=small_step)]
    repeats = warm_up(tasks, 1, till.clock())
    assert repeats == [3, 8], "10 ms is called thrice, 0.25 ms needs 8 calls for 2 ms"
    assert 15 < len(plain) <= 30, f"{len(plain)} plain steps to warm up"


def test_warm_up_is_bounded_on_a_machine_that_never_settles() -> None:
    machine = SlowingMachine()
    machine_runs: list[int] = []

    def step() -> None:
        machine_runs.append(0)
        machine.till.charge(10 * MS * 2 ** len(machine_runs) // 2 ** (len(machine_runs) // 2))

    warm_up([Task(part="ar", step=step)], 1, machine.till.clock())
    assert len(machine_runs) <= 70, f"{len(machine_runs)} steps to warm up"
