"""Who sits where in a batch: any order of leaving and refilling against plain sets."""

from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec_cli.engine.seats import Seats

PROPERTY = settings(deadline=None, derandomize=True)
WHO_LEAVES = st.lists(st.sets(st.integers(0, 3)), max_size=8)


def test_the_last_job_takes_the_first_free_row():
    seats = Seats(4, range(4))
    seats.leave(0)
    seats.leave(2)
    assert seats.moves() == [(3, 0)]
    assert seats.running() == [3, 1]
    assert seats.places == [0, 1, 2, 3], "asking moved someone"


def test_a_row_free_at_the_end_moves_nobody():
    seats = Seats(3, range(3))
    seats.leave(2)
    assert (seats.moves(), seats.running(), seats.free()) == ([], [0, 1], 1)
    seats.come_back(2)
    assert (seats.running(), seats.free()) == ([0, 1, 2], 0)


def test_waiting_jobs_take_free_rows_in_order_and_nobody_moves():
    seats = Seats(2, range(5))
    seats.leave(0)
    seats.fill()
    assert (seats.places, list(seats.waiting), seats.moves()) == ([2, 1], [3, 4], [])


@PROPERTY
@given(st.integers(1, 4), st.integers(0, 12), WHO_LEAVES, st.booleans())
def test_running_jobs_are_those_that_sat_down_and_have_not_left(rows, jobs, leavings, refill):
    """Nobody sits twice, moves are at most one a job that left, closed rows are the first ones."""
    seats, there, next_job = Seats(rows, range(jobs)), set(range(min(rows, jobs))), min(rows, jobs)
    for leaving in leavings:
        gone = [job for at, job in enumerate(seats.running()) if at in leaving]
        for job in gone:
            seats.leave(job)
        there -= set(gone)
        if refill:
            while next_job < jobs and len(there) < rows:
                there.add(next_job)
                next_job += 1
            seats.fill()
        moves, expected = seats.moves(), seats.running()
        assert len(moves) <= len(gone), f"{moves} for {gone}"
        for source, target in moves:
            assert seats.job_in(target) is None
            seats.move(source, target)
        assert seats.running() == [seats.job_in(row) for row in range(len(there))] == expected
        assert set(expected) == there
        assert seats.free() == rows - len(there)
