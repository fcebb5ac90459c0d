"""All scripts of phase 4, in the order in which they are best read:  python -m phase4_causal [options]"""

from phase4_causal import causal_attention, summary, visualize
from shared import cli

if __name__ == "__main__":
    cli.run_phase([causal_attention, visualize, summary])
