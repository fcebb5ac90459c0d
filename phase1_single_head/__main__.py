"""The scripts of phase 1, in the order of the lesson:  python -m phase1_single_head [options]"""

import sys
from functools import partial

from shared import cli, course

PLAN = course.Plan(
    train=("phase1_single_head.models:load_single_head_model",),
    scripts=(
        "before.bottleneck",
        "from_a_mean",
        "hidden_word",
        "visualize",
        "parts.soft_lookup",
        "parts.queries_and_keys",
        "parts.cross_attention",
        "parts.scaling",
        "order.position_encodings",
        "order.positions",
        "long_path.path_length",
        "long_path.layer_costs",
        "reading.reading_weights",
        "reading.weight_statistics",
        "reading.textbook_numbers",
    ),
    slow=("before.bottleneck", "order.positions", "parts.scaling"),
    alone=("before.scoring",),
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase1", *sys.argv[1:]]))
