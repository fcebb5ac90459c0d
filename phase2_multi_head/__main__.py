"""All scripts of phase 2, in the order in which they are best read:  python -m phase2_multi_head [options]"""

import sys
from functools import partial

from phase2_multi_head import multi_head_attention, visualize
from phase2_multi_head.block import collapse_rate, pre_or_post_norm, rank_collapse, transformer_block
from phase2_multi_head.costs import benchmark, cost_model, fused_attention, head_costs
from phase2_multi_head.heads import heads_vs_loss, one_or_four_heads, output_projection, untrained_heads, wrong_heads
from phase2_multi_head.pooling import attention_pooling, pooling_questions
from phase2_multi_head.pruning import head_pruning, two_lookups
from shared import cli, course

PLAN = course.Plan(
    train=[multi_head_attention],
    in_order=[
        multi_head_attention,
        visualize,
        untrained_heads,
        one_or_four_heads,
        wrong_heads,
        output_projection,
        head_costs,
        two_lookups,
        head_pruning,
        transformer_block,
        pre_or_post_norm,
        rank_collapse,
        collapse_rate,
        attention_pooling,
        pooling_questions,
        fused_attention,
        cost_model,
    ],
    long=[heads_vs_loss],
    alone=[benchmark],
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase2", *sys.argv[1:]]))
