#!/usr/bin/env bash
# On first use this makes .venv and installs everything there. Then it runs the course: python shared/course.py.
#
#   ./run_all.sh              the four phases, then the report page
#   ./run_all.sh test         the tests
#   ./run_all.sh help         all words, and the options that follow a word: ./run_all.sh phase2 --seeds 3
[ -n "${BASH_VERSION-}" ] || exec bash "$0" "$@"  # sh run_all.sh
set -euo pipefail
script=${BASH_SOURCE[0]}
while [[ -L $script ]]; do  # macOS has no readlink -f
    target=$(readlink "$script")
    [[ $target == /* ]] || target=$(dirname "$script")/$target
    script=$target
done
CDPATH='' cd -P "$(dirname "$script")"
python=.venv/bin/python

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
fail() { printf 'run_all.sh: %s\n' "$*" >&2; exit 2; }
version_of() { "$1" -V 2> /dev/null || true; }
is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null; }
has_pip() { "$python" -m pip install --help > /dev/null 2>&1; }  # all of it: --version is content with half
is_apart() { "$python" -c 'import os, sys; sys.exit(not os.path.samefile(sys.prefix, ".venv"))' 2> /dev/null; }
is_of_uv() { command -v uv > /dev/null && grep -q '^uv = ' .venv/pyvenv.cfg; }

stamp() {  # three lines, kept in .venv/installed: what was installed, where, and for which Python
    local version
    version=$(version_of "$python")
    cksum < pyproject.toml
    pwd
    printf '%s\n' "${version%.*}"
}

what_is_wrong() {  # with the environment, so that it cannot stay; $1: the Python that its packages are for
    local version
    version=$(version_of "$python")
    if [[ -z $version ]]; then echo "it has no Python that runs"
    elif ! is_recent "$python"; then echo "$version is too old"
    elif [[ -n $1 && $1 != "${version%.*}" ]]; then echo "its packages are for $1, and this is $version"
    elif ! is_apart; then echo "what it installs would go elsewhere"
    elif ! has_pip && ! is_of_uv; then echo "its set-up was interrupted"
    fi
}

make() {
    local found version
    found=$(command -v "${PYTHON:-python3}") || fail "no ${PYTHON:-python3} found: install Python 3.11 or newer"
    version=$(version_of "$found")
    [[ -n $version ]] || fail "$found does not run: name another Python with PYTHON=/path/to/python"
    is_recent "$found" ||
        fail "$version is too old: install Python 3.11 or newer, or name one with PYTHON=/path/to/python"
    "$found" -c 'import venv, ensurepip' 2> /dev/null ||
        fail "this Python has no venv module: install it (Debian, Ubuntu: sudo apt-get install python3-venv)"
    say "$1 (about a minute and the download of PyTorch)"
    "$found" -m venv --clear .venv || fail "no .venv could be made: see the lines above"
}

point_here() {  # by a relative path to the modules, where pip writes an absolute one: a copy finds its own
    # and shared is loaded first: see shared/__init__.py
    local site
    for site in .venv/lib/python3*/site-packages; do
        rm -f "$site"/__editable__*attention_from_scratch*
        printf '../../../..\nimport shared\n' > "$site/here.pth"
    done
}

move() {  # $1: where .venv was made. Its scripts begin with that path. A copy may share their files with the original
    say ".venv was made in $1: putting the new path into its scripts"
    "$python" -I - "$1/.venv" "$PWD/.venv" << 'END' || fail "the scripts in .venv/bin cannot be changed"
import os, re, shlex, sys
from pathlib import Path
old, new = sys.argv[1:]
for file in list(Path(".venv/bin").iterdir()):
    if file.is_symlink() or not file.is_file() or os.fsencode(old) not in file.read_bytes():
        continue
    text, changed = os.fsdecode(file.read_bytes()), file.with_name(f"{file.name}.new")
    # As pip does it for a path with spaces: "#!" takes none
    text = re.sub(rf"\A#!({re.escape(old)}/bin/.*)", r"""#!/bin/sh\n'''exec' "\1" "$0" "$@"\n' '''""", text)
    text = text.replace(f"{old}/bin/", f"{new}/bin/")
    text = re.sub(rf"""(["']?){re.escape(old)}\1(?=[\s)])""", lambda _: shlex.quote(new), text)  # activate
    changed.write_bytes(os.fsencode(text))
    changed.chmod(file.stat().st_mode)
    changed.replace(file)
END
    point_here
}

install() {
    local pip=("$python" -m pip install --disable-pip-version-check)
    rm -f .venv/installed
    has_pip || pip=(uv pip install --python "$python")
    "${pip[@]}" --quiet --editable '.[test]' ||
        fail "the installation failed: see the lines above, check the network, and run this again"
    point_here
}

set_up() {
    local what="" where="" version="" wrong
    if [[ -f .venv/installed ]]; then
        if [[ $(< .venv/installed) == "$(stamp)" ]]; then return; fi
        { IFS= read -r what && IFS= read -r where && IFS= read -r version; } < .venv/installed || true
    fi
    trap 'printf "\nrun_all.sh: interrupted: the next call goes on from here\n" >&2; exit 130' INT
    wrong=$(what_is_wrong "$version")
    if [[ ! -e .venv ]]; then
        make "Setting up .venv, once"
    elif [[ -n $wrong ]]; then
        make "Making .venv anew, because $wrong"
    elif [[ -z $where ]]; then
        say "Installing into the .venv that is here"
    elif [[ $where != "$PWD" ]]; then
        move "$where"
    fi
    if [[ ! -f .venv/installed || -z $where ]]; then
        install
    elif [[ $what != "$(cksum < pyproject.toml)" ]]; then
        say "pyproject.toml has changed: installing what is new"
        install
    fi
    stamp > .venv/installed.new
    mv -f .venv/installed.new .venv/installed
}

case ${1-} in
    "" | -* | all | phase[1-4] | test | replicate | publish | help) ;;
    *) fail "unknown word '$1': say all, phase1, phase2, phase3, phase4, test, replicate, publish or help" ;;
esac
set_up
exec "$python" shared/course.py "$@"
