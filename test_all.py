"""The tests of everything:  ./run_all.sh test   or   pytest test_all.py

This is their table of contents: each name stands for <folder>/tests/test_<name>.py, beside the room that it tests.

They compare with oracles: a plain loop, torch's own functions with copied weights, numbers worked by hand. Sizes are
different primes, so that no two axes can be confused; float64 first, where equal means equal to 12 digits.
Two tables in shared/tests carry most of the weight: test_oracles.py has every way to compute attention and its
reference, faults.txt the mistakes that must be noticed, one or more for each line of mechanism. The tests plant a few;
./run_all.sh test --faults plants all of them.
"""

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
        "random_inputs",
        "serving",
        "writing",
    ),
    "shared": (
        "evidence",
        "exercises",
        "hostile_inputs",
        "house",
        "lessons",
        "measure",
        "oracles",
        "report",
        "running",
        "scripts",
        "toy_language",
        "training",
        "visualization_utils",
    ),
}
