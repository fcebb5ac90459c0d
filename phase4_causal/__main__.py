"""All scripts of phase 4, in the order in which they are best read:  python -m phase4_causal [options]"""

from phase4_causal import causal_attention, summary, visualize
from shared import cli


def main(argv: list[str] | None = None) -> None:
    for script in (causal_attention, visualize, summary):
        print(f"\n== phase4_causal/{script.__name__.split('.')[-1]}.py", flush=True)
        script.main(argv)


if __name__ == "__main__":
    cli.run(main)
