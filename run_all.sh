#!/usr/bin/env bash
# On first use this makes .venv and installs everything there. Then it runs the course: python shared/lab/runner.py.
# Help, and what is wrong with a word or an option, is said at once, before anything is installed.
#
#   ./run_all.sh              the four phases, then the report page
#   ./run_all.sh test         the tests
#   ./run_all.sh help         the rest
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

# ---- what was typed

words=(all phase1 phase2 phase3 phase4 test help replicate publish)
# as shared/cli.py has them
options=(--sentence --sentences --seed --seeds --device --retrain --quick --numbers --output-dir --no-pictures
    --format --d-model --heads --layers --words --if-used --verbose)

show_help() {
    cat << 'END'
./run_all.sh                  the four lessons, then a page with what came out
./run_all.sh phase2           one lesson: phase1, phase2, phase3 or phase4
./run_all.sh all              the four lessons, and the experiments that take longer
./run_all.sh test -k ring     the tests; with -k only those with this word in their name
./run_all.sh help all         all words and all options
Options follow the word:
    --sentence "a dog slept in the box"    look at this sentence
    --words                                print the 97 words that it may have
    --seeds 3                              measure with three random starts
    --retrain                              train again, even if the models are there
    --verbose                              print all that the scripts say
END
}

did_you_mean() {  # the word most like the first: so few letters differ between a common beginning and a common end
    local word=$1 known a b nearest='' least=3
    for known in "${@:2}"; do
        a=$word b=$known
        while [[ -n $a && ${a:0:1} == "${b:0:1}" ]]; do a=${a:1} b=${b:1}; done
        while [[ -n $a && ${a: -1} == "${b: -1}" ]]; do a=${a%?} b=${b%?}; done
        ((${#a} < ${#b})) || b=$a  # the longer one
        [[ $known != "$word"* ]] || b=1  # a beginning is as near as one letter
        ((${#b} >= least)) || { least=${#b} nearest=$known; }
    done
    if [[ -n $nearest ]]; then printf ': did you mean %s?' "$nearest"; else printf ': see ./run_all.sh help'; fi
}

check_options() {
    local option
    [[ ${1-} == -* || ${2-} != phase* ]] || fail "one lesson at a time, or all four: ./run_all.sh"
    for option in "${@%%=*}"; do
        case $option in
            -h | --help) show_help; exit ;;
            -[0-9]*) ;;  # a number, which the course judges
            -*) [[ " ${options[*]} " == *" $option "* ]] ||
                fail "no option $option$(did_you_mean "$option" "${options[@]}")" ;;
        esac
    done
}

check_tests() {  # -k WORD: a name made of letters alone stands somewhere in the code, if there is such a test
    while (($#)); do
        case $1 in
            -h | --help) show_help; exit ;;
            -k) [[ ! ${2-} =~ ^[A-Za-z_]+$ ]] || grep -rqi --include='*.py' --exclude-dir='.?*' -- "$2" . ||
                find . -path './.?*' -prune -o -iname "*$2*.py" -print | grep -q . ||
                fail "no test is called '$2'" ;;
        esac
        shift
    done
}

case ${1-} in
    help) [[ ${2-} == all ]] || { show_help; exit; } ;;
    "" | -* | all | phase[1-4]) check_options "$@" ;;
    test) check_tests "$@" ;;
    replicate | publish) ;;
    *) fail "unknown word '$1'$(did_you_mean "$1" "${words[@]}")" ;;
esac

# ---- and now do it

if [[ ! -f .venv/installed || $(< .venv/installed) != "$(stamp)" ]]; then
    trap 'printf "\nrun_all.sh: interrupted: the next call goes on from here\n" >&2; exit 130' INT
    can_stay || make
    install
fi
exec "$python" shared/lab/runner.py "$@"
