"""All scripts of phase 4, in the order in which they are best read:  python -m phase4_causal [options]"""

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
    masks,
    nan_causes,
    promises,
    summary,
    visualize,
)
from shared import cli

IN_ORDER = [
    masks,
    causal_attention,
    visualize,
    causality,
    nan_causes,
    key_value_cache,
    cached_or_not,
    generate,
    generation_temperature,
    generation_film,
    long_context,
    linear_kernel,
    promises,
    summary,
]
BESIDE = [breaking_causality]  # it trains four models

if __name__ == "__main__":
    cli.run_phase(IN_ORDER, BESIDE, alone=[cache_costs, length_benchmark])
