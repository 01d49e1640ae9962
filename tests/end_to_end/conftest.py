"""F1's corpus and two gloo processes, shared by the tests of one file."""

import pytest
from helpers.spawn import DistributedPool
from helpers.tiny_run import write_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def pool():
    with DistributedPool(2) as pool:
        yield pool
