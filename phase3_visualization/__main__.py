"""All scripts of phase 3, in the order in which they are best read:  python -m phase3_visualization [options]"""

from phase3_visualization import attention_3d, attention_flow
from shared import cli


def main(argv: list[str] | None = None) -> None:
    for script in (attention_flow, attention_3d):
        print(f"\n== phase3_visualization/{script.__name__.split('.')[-1]}.py", flush=True)
        script.main(argv)


if __name__ == "__main__":
    cli.run(main)
