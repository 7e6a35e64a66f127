# Sourced by the other scripts, in the repository root: makes .venv with the pinned packages, or reuses it.
# PYTHON=/path/to/python picks the interpreter.

new_enough() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

# Each candidate is run: version managers leave shims behind that start nothing, and some distributions
# ship python3 without venv. Up to 3.12 every pinned package has a wheel, so those go first.
find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
        if new_enough "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    echo "No Python 3.11 or newer with venv among: ${PYTHON:-python3.11 python3.12 python3.13 python3 python}." >&2
    echo "Install one (Debian, Ubuntu: apt install python3 python3-venv) or set PYTHON=/path/to/python3." >&2
    return 1
}

# A .venv that was copied or moved along with its folder would run, and test, the code of the old place.
usable_venv() {
    new_enough .venv/bin/python && grep -qF "$(pwd -P)/.venv" .venv/bin/activate
}

# quietly WHAT COMMAND...: one line on the terminal, the output in .venv/setup.log, its end shown on failure.
quietly() {
    echo "   $1"
    shift
    if ! "$@" >>.venv/setup.log 2>&1; then
        echo "   failed: $*" >&2
        tail -n 30 .venv/setup.log >&2
        echo "   (all of it: $PWD/.venv/setup.log)" >&2
        return 1
    fi
}

# ensure_venv EXTRA: .venv holds this package (editable) with EXTRA. `dev` includes `envs`.
ensure_venv() {
    local extra=$1 wanted python stamp
    wanted=$(cat pyproject.toml constraints.txt | cksum)
    for stamp in ".venv/installed-$extra" .venv/installed-dev; do
        if [[ -f $stamp && $(<"$stamp") == "$wanted" ]] && usable_venv; then
            echo "== .venv is up to date"
            return
        fi
    done

    if usable_venv; then
        echo "== Updating .venv to pyproject.toml and constraints.txt"
    else
        python=$(find_python)
        echo "== Making .venv with $("$python" --version) ($python): takes some minutes"
        "$python" -m venv --clear .venv
    fi
    rm -f .venv/installed-*
    : >.venv/setup.log
    # On its own and first, so that the longest download shows as what it is.
    quietly "installing torch (the largest download)" \
        .venv/bin/python -m pip install --no-input torch -c constraints.txt
    quietly "installing marl-tools[$extra] and its pinned dependencies" \
        .venv/bin/python -m pip install --no-input -e ".[$extra]" -c constraints.txt
    # These two ask for packages that clash with ours, or that are far larger than what is used of them.
    [[ $extra != dev ]] || quietly "installing the environments of MOMAland and MASA" \
        .venv/bin/python -m pip install --no-input --no-deps momaland masa-safe-rl -c constraints.txt
    echo "$wanted" >".venv/installed-$extra"
}
