#!/usr/bin/env bash
# On first use this makes .venv and installs everything there. Then it runs the course: python shared/course.py.
#
#   ./run_all.sh              the four phases, then the report page
#   ./run_all.sh test         the tests
#   ./run_all.sh help         all words, and the options that follow a word: ./run_all.sh phase2 --seeds 3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=.venv/bin/python

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { printf 'run_all.sh: %s\n' "$*" >&2; exit 2; }

set_up() {
    local wanted found
    wanted=$(cksum < pyproject.toml)
    if [[ -x $python && -f .venv/installed && $(< .venv/installed) == "$wanted" ]]; then return; fi
    found=$(command -v "${PYTHON:-python3}") || fail "no ${PYTHON:-python3} found: install Python 3.11 or newer"
    "$found" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "$("$found" --version) is too old: install Python 3.11 or newer, or name one with PYTHON=/path/to/python"
    "$found" -c 'import venv, ensurepip' 2> /dev/null ||
        fail "this Python has no venv module: install it (Debian, Ubuntu: sudo apt-get install python3-venv)"
    say "Setting up .venv (once, about a minute and the download of PyTorch)"
    [[ -x $python ]] || "$found" -m venv .venv
    local install=("$python" -m pip install --disable-pip-version-check)
    "$python" -m pip --version > /dev/null 2>&1 || install=(uv pip install --python "$python")  # uv venv has no pip
    "${install[@]}" --quiet --editable '.[test]' ||
        fail "the installation failed: see the lines above, check the network, and run this again"
    printf '%s' "$wanted" > .venv/installed
}

case ${1-} in
    "" | -* | all | phase[1-4] | test | replicate | publish | help) ;;
    *) fail "unknown word '$1': say all, phase1, phase2, phase3, phase4, test, replicate, publish or help" ;;
esac
set_up
exec "$python" shared/course.py "$@"
