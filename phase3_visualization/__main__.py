"""All scripts of phase 3, in the order in which they are best read:  python -m phase3_visualization [options]"""

import sys
from functools import partial

from phase2_multi_head import multi_head_attention
from phase3_visualization import attention_3d, attention_flow
from phase3_visualization.explanation import not_an_explanation
from phase3_visualization.explorer import explorer
from phase3_visualization.layers import faithfulness, rollout
from phase3_visualization.pretrained import coreference, hub_or_no_op, language_model, pretrained, pretrained_parity
from phase3_visualization.roles import attention_distance, entropy_training, head_roles, role_stability, training_film
from shared import cli, course

# the scripts on a published language model, where the extra is installed
PRETRAINED = [pretrained, pretrained_parity, coreference, hub_or_no_op] if language_model.available() else []
PLAN = course.Plan(
    train=[multi_head_attention],
    in_order=[
        attention_flow,
        attention_3d,
        head_roles,
        attention_distance,
        entropy_training,
        rollout,
        faithfulness,
        not_an_explanation,
        *PRETRAINED,
        explorer,
    ],
    long=[role_stability, training_film],
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase3", *sys.argv[1:]]))
