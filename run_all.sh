#!/usr/bin/env bash
# Runs the course. On first use it makes .venv and installs everything there.
#
#   ./run_all.sh              the four phases, then the report page
#   ./run_all.sh all          the same, and the experiments that take longer
#   ./run_all.sh phase2       one phase
#   ./run_all.sh test         the tests
#   ./run_all.sh help         the options, which follow the word: ./run_all.sh phase2 --seeds 3
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
python=.venv/bin/python
trap 'kill $(jobs -p) 2> /dev/null; exit 130' INT TERM  # background jobs do not hear Ctrl-C by themselves
longer=(phase4_causal/induction.py phase4_causal/ring_attention.py)
phases=(phase1_single_head phase2_multi_head phase3_visualization phase4_causal)

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

# The models do not depend on each other: train them in two processes of one thread each.
train_all() {
    say "Training what is not trained yet"
    "$python" phase2_multi_head/multi_head_attention.py --train-only "$@" &
    local other=$! failed=0
    { "$python" phase4_causal/causal_attention.py --train-only "$@" &&
        "$python" phase1_single_head/self_attention.py --train-only "$@"; } || failed=$?
    wait "$other" || failed=$?
    return "$failed"
}

what=default
if [[ $# -gt 0 && $1 != -* ]]; then what=$1; shift; fi
case $what in
    default | all)
        set_up
        "$python" shared/cli.py "$@"
        started=$SECONDS
        train_all "$@"
        looks=(); for option in "$@"; do [[ $option == --retrain ]] || looks+=("$option"); done
        for phase in "${phases[@]}"; do  # each has two processes of its own
            "$python" -m "$phase" "${looks[@]+"${looks[@]}"}"
        done
        if [[ $what == all ]]; then
            for script in "${longer[@]}"; do
                say "$script"
                "$python" "$script" "${looks[@]+"${looks[@]}"}"
            done
        fi
        say "All four phases ran in $((SECONDS - started)) s"
        "$python" shared/findings.py "${looks[@]+"${looks[@]}"}"
        ;;
    phase[1-4])
        set_up
        "$python" -m "${phases[${what#phase} - 1]}" "$@"
        "$python" shared/findings.py "$@"
        ;;
    test)
        set_up
        "$python" -m pytest test_all.py "$@"
        ;;
    help | -h | --help)
        set_up
        sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
        "$python" shared/cli.py --help
        ;;
    *)
        fail "unknown word '$what': say all, phase1, phase2, phase3, phase4, test or help"
        ;;
esac
