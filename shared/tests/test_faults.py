"""Every row of faults.txt fits its file, and some faults are planted; all of them: ./run_all.sh test --faults"""

import pytest

from shared.tests import faults, test_oracles
from shared.tests.faults import FAULTS

HAVE_ORACLES = {name.split(",")[0] for name in (*test_oracles.WAYS, *test_oracles.MODULES)}
FIRST = {file: (file, old, new) for file, old, new in reversed(FAULTS) if faults.Path(file).stem in HAVE_ORACLES}


@pytest.mark.parametrize("file", sorted({file for file, *_ in FAULTS}))
def test_rows_have_moved_with_the_code(file):
    for row in FAULTS:
        if row[0] == file:
            faults.broken(*row)
            assert row[1] != row[2]


@pytest.mark.parametrize("row", FIRST.values(), ids=FIRST)
def test_the_first_fault_of_a_file_is_noticed_and_taken_out_again(row):
    assert faults.oracles_notice(*row)
