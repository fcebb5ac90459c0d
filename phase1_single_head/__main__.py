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
        "before.scoring",
        "parts.queries_and_keys",
        "parts.look_up",
        "parts.scaling",
        "order.positions",
        "reading.long_path",
    ),
    slow=("before.bottleneck", "order.positions", "parts.scaling"),
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase1", *sys.argv[1:]]))
