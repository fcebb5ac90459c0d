"""The scripts of phase 4, in the order in which they are best read:  python -m phase4_causal [options]

What trains models for a minute runs with `./run_all.sh all` only (longer).
"""

import sys
from functools import partial

from shared import cli, course

PLAN = course.Plan(
    train=("phase2_multi_head.models:load_multi_head_model", "phase4_causal.models:load_causal_model"),
    scripts=(
        "visualize",
        "masking.conventions",
        "masking.causality",
        "masking.breaking_causality",
        "masking.mask_patterns",
        "masking.nan_causes",
        "writing.generate",
        "writing.cache_savings",
        "long_texts.sparse_reach",
        "long_texts.overwriting",
        "serving.speculative",
        "serving.pages",
        "summary",
    ),
    slow=("masking.breaking_causality", "serving.speculative"),
    alone=("long_texts.long_context", "serving.cache_cost"),
    longer=(
        "induction.induction",
        "induction.circuits",
        "serving.shared_keys",
        "serving.sinks",
        "serving.longer",
    ),
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase4", *sys.argv[1:]]))
