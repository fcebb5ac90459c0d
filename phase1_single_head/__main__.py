"""All scripts of phase 1, in the order in which they are best read:  python -m phase1_single_head [options]"""

import sys
from functools import partial

from phase1_single_head import (
    bottleneck,
    cross_attention,
    layer_costs,
    path_length,
    position_encodings,
    positions,
    queries_and_keys,
    reading_weights,
    recurrence,
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
from shared import cli, course

PLAN = course.Plan(
    train=[self_attention],
    in_order=[
        self_attention,
        visualize,
        soft_lookup,
        queries_and_keys,
        scoring,
        scoring_rules,
        cross_attention,
        scaling,
        scaling_training,
        position_encodings,
        recurrence,
        reading_weights,
        weight_statistics,
        textbook_numbers,
    ],
    long=[bottleneck, positions, path_length, layer_costs],
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase1", *sys.argv[1:]]))
