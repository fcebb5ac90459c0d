"""The scripts of phase 2, in the order in which they are best read:  python -m phase2_multi_head [options]"""

import sys
from functools import partial

from shared import cli, course

PLAN = course.Plan(
    train=("phase2_multi_head.models:load_multi_head_model", "phase2_multi_head.models:load_one_layer_model"),
    scripts=(
        "visualize",
        "heads.wrong_heads",
        "heads.output_projection",
        "heads.how_many_heads",
        "heads.two_lookups",
        "block.rank_collapse",
        "pruning.head_pruning",
        "pooling.pooling_questions",
        "costs.cost_model",
    ),
    slow=("heads.how_many_heads", "heads.two_lookups", "pruning.head_pruning"),
    alone=("costs.benchmark",),
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase2", *sys.argv[1:]]))
