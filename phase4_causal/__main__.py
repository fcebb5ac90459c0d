"""The scripts of phase 4, in the order in which they are best read:  python -m phase4_causal [options]

Two take longer and run with `./run_all.sh all` only: induction.py (40 s) and ring_attention.py (several processes).
"""

import sys
from functools import partial

from phase2_multi_head import multi_head_attention
from phase4_causal import causal_attention, key_value_cache, summary, visualize
from phase4_causal.induction import induction
from phase4_causal.long_texts import length_benchmark, linear_kernel, long_context, ring_attention, sparse_reach
from phase4_causal.masking import breaking_causality, causality, mask_patterns, masks, nan_causes
from phase4_causal.writing import (
    cache_costs,
    cached_or_not,
    generate,
    generation_film,
    generation_temperature,
    promises,
)
from shared import cli, course

PLAN = course.Plan(
    train=[multi_head_attention, causal_attention],
    in_order=[
        masks,
        causal_attention,
        visualize,
        causality,
        mask_patterns,
        nan_causes,
        key_value_cache,
        cached_or_not,
        cache_costs,
        generate,
        generation_temperature,
        generation_film,
        long_context,
        sparse_reach,
        linear_kernel,
        promises,
        summary,
    ],
    long=[breaking_causality],
    alone=[length_benchmark],
    longer=[induction, ring_attention],
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase4", *sys.argv[1:]]))
