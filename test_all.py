"""The tests of everything:  ./run_all.sh test   or   pytest test_all.py   or   python test_all.py

This is their table of contents: each name stands for <folder>/tests/test_<name>.py, beside the room
that it tests.

They compare with oracles: a plain loop, torch's own functions with copied weights, numbers worked
by hand. Sizes are different primes, so that no two axes can be confused; float64 first, where equal
means equal to 12 digits. Two tables in shared/tests carry most of the weight: test_oracles.py has
every way to compute attention and its reference, faults.txt the mistakes that must be noticed, one
or more for each line of mechanism. The tests plant a few; ./run_all.sh test --faults plants all of
them.
"""

import sys

TESTS = {
    "phase1_single_head": (
        "before",
        "order",
        "parts",
        "reading",
        "self_attention",
    ),
    "phase2_multi_head": ("block", "costs", "heads", "pooling"),
    "phase3_visualization": (
        "circuits",
        "explorer",
        "explorer_pages",
        "layers",
        "pretrained",
        "roles",
    ),
    "phase4_causal": (
        "induction",
        "long_texts",
        "masking",
        "own_text",
        "serving",
        "writing",
    ),
    "shared": (
        "exercises",
        "house",
        "lessons",
        "oracles",
        "refusals",
        "scripts",
        "toy_language",
        "training",
        "visualization_utils",
    ),
    "shared/lab": ("record", "report", "runner"),
}


def main() -> int:
    """Run the tests as pytest would; options are those of pytest. Returns its exit code."""
    try:
        import pytest
    except ImportError:
        print(
            'test_all.py: the tests need more packages: python -m pip install -e ".[test]"',
            file=sys.stderr,
        )
        return 2
    return pytest.main([__file__, *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
