"""All scripts of phase 2, in the order in which they are best read:  python -m phase2_multi_head [options]"""

from phase2_multi_head import (
    attention_pooling,
    fused_attention,
    head_costs,
    head_pruning,
    heads_vs_loss,
    multi_head_attention,
    one_or_four_heads,
    output_projection,
    pooling_questions,
    two_lookups,
    untrained_heads,
    visualize,
    wrong_heads,
)
from shared import cli

IN_ORDER = [
    multi_head_attention,
    visualize,
    untrained_heads,
    one_or_four_heads,
    wrong_heads,
    output_projection,
    head_costs,
    two_lookups,
    head_pruning,
    attention_pooling,
    fused_attention,
]
BESIDE = [heads_vs_loss, pooling_questions]  # as long as all the others

if __name__ == "__main__":
    cli.run_phase(IN_ORDER, BESIDE)
