"""What all phases share. The .venv that run_all.sh makes loads this file first (its here.pth)."""

import sys

# pandas looks for a library of this name, and would find our script before/bottleneck.py.
sys.modules.setdefault("bottleneck", None)
