"""All scripts of phase 2, in the order in which they are best read:  python -m phase2_multi_head [options]"""

from phase2_multi_head import multi_head_attention, one_or_four_heads, visualize
from shared import cli

if __name__ == "__main__":
    cli.run_phase([multi_head_attention, visualize, one_or_four_heads])
