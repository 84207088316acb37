"""One torch thread: tiny models gain nothing from more, and other tests share the cores."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)
