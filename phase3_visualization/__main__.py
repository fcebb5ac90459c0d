"""All scripts of phase 3, in the order in which they are best read:  python -m phase3_visualization [options]"""

from phase3_visualization import attention_3d, attention_flow
from shared import cli

if __name__ == "__main__":
    cli.run_phase([attention_flow, attention_3d])
