#!/usr/bin/env bash
# On first use this makes .venv and installs everything there. Then it runs the course: python shared/lab/runner.py.
#
#   ./run_all.sh              the four phases, then the report page
#   ./run_all.sh test         the tests
#   ./run_all.sh help         all words, and the options that follow a word: ./run_all.sh phase2 --seeds 3
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@"  # sh run_all.sh
set -euo pipefail
unset PYTHONPATH PYTHONHOME CDPATH
unset PYTHONDONTWRITEBYTECODE  # what is imported is compiled once, not in each process
python=.venv/bin/python

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { printf 'run_all.sh: %s\n' "$*" >&2; exit 2; }

cd -P -- "$(dirname -- "${BASH_SOURCE[0]}")"
[[ -f shared/lab/runner.py ]] || fail "$PWD is not the folder of the course"  # never make .venv in another project's

version_of() { "$1" -V 2> /dev/null || true; }
is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; }

stamp() {  # three lines, kept in .venv/installed: what was installed, where, and for which Python
    cksum < pyproject.toml
    pwd
    version_of "$python" | cut -d . -f 1,2
}

can_stay() {  # an environment made here, whole, whose packages are for its Python; or one of the reader's own
    is_recent "$python" && "$python" -m pip install --help > /dev/null 2>&1 &&
        [[ ! -f .venv/installed || $(tail -n 2 .venv/installed) == "$(stamp | tail -n 2)" ]]
}

make() {
    local found
    found=$(command -v "${PYTHON:-python3}") || fail "no ${PYTHON:-python3} found: install Python 3.11 or newer"
    is_recent "$found" ||
        fail "$found is $(version_of "$found"): install Python 3.11 or newer, or name one with PYTHON=/path/to/python"
    "$found" -c 'import venv, ensurepip' 2> /dev/null ||
        fail "this Python has no venv module: install it (Debian, Ubuntu: sudo apt-get install python3-venv)"
    say "Making .venv, once for this folder and this Python (about a minute and the download of PyTorch)"
    "$found" -m venv --clear .venv || fail "no .venv could be made: see the lines above"
}

install() {
    rm -f .venv/installed
    # Of thousands of files a few hundred are ever imported: those are compiled then.
    "$python" -m pip install --disable-pip-version-check --quiet --no-compile --editable '.[test]' ||
        fail "the installation failed: see the lines above, check the network, and run this again"
    # This folder's modules come first, whatever else is on this machine; and see shared/__init__.py
    local site
    for site in .venv/lib/python3*/site-packages; do
        rm -f "$site"/__editable__*attention_from_scratch*
        echo 'import os, sys; sys.path.insert(0, os.path.dirname(sys.prefix)); import shared' > "$site/here.pth"
    done
    stamp > .venv/installed.new
    mv -f .venv/installed.new .venv/installed
}

case ${1-} in
    "" | -* | all | phase[1-4] | test | replicate | publish | help) ;;
    *) fail "unknown word '$1': say all, phase1, phase2, phase3, phase4, test, replicate, publish or help" ;;
esac
if [[ ! -f .venv/installed || $(< .venv/installed) != "$(stamp)" ]]; then
    trap 'printf "\nrun_all.sh: interrupted: the next call goes on from here\n" >&2; exit 130' INT
    can_stay || make
    install
fi
exec "$python" shared/lab/runner.py "$@"
