"""One thread for all tests of the engine: tiny products are slower on several, and much slower
when other programs hold the cores.
"""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
