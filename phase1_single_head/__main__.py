"""All scripts of phase 1, in the order in which they are best read:  python -m phase1_single_head [options]"""

from phase1_single_head import self_attention, visualize
from shared import cli


def main(argv: list[str] | None = None) -> None:
    for script in (self_attention, visualize):
        print(f"\n== phase1_single_head/{script.__name__.split('.')[-1]}.py", flush=True)
        script.main(argv)


if __name__ == "__main__":
    cli.run(main)
