"""All scripts of phase 1, in the order in which they are best read:  python -m phase1_single_head [options]"""

from phase1_single_head import (
    bottleneck,
    cross_attention,
    path_length,
    positions,
    queries_and_keys,
    reading_weights,
    scaling,
    scaling_training,
    scoring,
    scoring_rules,
    self_attention,
    soft_lookup,
    textbook_numbers,
    visualize,
    weight_statistics,
)
from shared import cli

IN_ORDER = [
    self_attention,
    visualize,
    soft_lookup,
    queries_and_keys,
    scoring,
    scoring_rules,
    cross_attention,
    scaling,
    positions,
    path_length,
    reading_weights,
    weight_statistics,
    textbook_numbers,
]
TRAIN_LONG = [bottleneck, scaling_training]

if __name__ == "__main__":
    cli.run_phase(IN_ORDER, beside=TRAIN_LONG)
