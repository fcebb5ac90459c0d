"""All scripts of phase 1, in the order in which they are best read:  python -m phase1_single_head [options]"""

import sys
from functools import partial

from phase1_single_head import self_attention, visualize
from phase1_single_head.before import bottleneck, scoring, scoring_rules
from phase1_single_head.long_path import layer_costs, path_length, recurrence
from phase1_single_head.order import position_encodings, positions
from phase1_single_head.parts import cross_attention, queries_and_keys, scaling, scaling_training, soft_lookup
from phase1_single_head.reading import reading_weights, textbook_numbers, weight_statistics
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
