#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clients.py with the official OpenAI Python client: as installed, or from a virtual environment in the build directory.
# Exit status 77 with the reason when it cannot be had.
#
#   openai_client.sh BIN_DIR VENV_DIR
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
bin=${1:?usage: openai_client.sh BIN_DIR VENV_DIR}
venv=${2:?usage: openai_client.sh BIN_DIR VENV_DIR}
has() { "$1" -c 'import openai' >/dev/null 2>&1; }

python=
for candidate in python3 "$venv/bin/python"; do
    if has "$candidate"; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    rm -rf "$venv"
    said=$(python3 -m venv "$venv" 2>&1 && timeout 120 "$venv/bin/python" -m pip install --quiet --retries 1 --timeout 15 \
        --disable-pip-version-check 'openai>=1' 2>&1) || {
        printf 'openai_client: skipped, the client cannot be installed: %s\n' "$(printf '%s' "$said" | tail -n 2)" >&2
        exit 77
    }
    python=$venv/bin/python
fi
exec "$python" "$here/clients.py" openai "$bin"
