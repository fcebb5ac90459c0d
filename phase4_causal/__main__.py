"""The scripts of phase 4, in the order in which they are best read:  python -m phase4_causal [options]

Two take longer and run with `./run_all.sh all` only: induction.py (40 s) and ring_attention.py (several processes).
"""

from phase4_causal import (
    breaking_causality,
    cache_costs,
    cached_or_not,
    causal_attention,
    causality,
    generate,
    generation_film,
    generation_temperature,
    key_value_cache,
    length_benchmark,
    linear_kernel,
    long_context,
    mask_patterns,
    masks,
    nan_causes,
    promises,
    sparse_reach,
    summary,
    visualize,
)
from shared import cli

IN_ORDER = [
    masks,
    causal_attention,
    visualize,
    mask_patterns,
    causality,
    nan_causes,
    key_value_cache,
    cached_or_not,
    generate,
    generation_temperature,
    generation_film,
    long_context,
    sparse_reach,
    linear_kernel,
    promises,
    summary,
]
BESIDE = [breaking_causality]  # it trains four models

if __name__ == "__main__":
    cli.run_phase(IN_ORDER, BESIDE, alone=[cache_costs, length_benchmark])
