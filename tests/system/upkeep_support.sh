# shellcheck shell=sh
# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts that let gms-up keep a whole deployment of minillm: a directory, a deployment file, an end that
# leaves nothing behind. They signal what they have started, and processes of their own deployment as its status names
# them.
#
#   upkeep_open NAME BIN_DIR     sets work, run, up_log; upkeep_config EXTRA writes $work/my.cfg
#   start_up / stop_up           gms-up in the background ($up) and its planned stop
#   until_log TEXT, number_of TEXT

upkeep_open() { # name bin
    name=$1
    bin=$(CDPATH='' cd -- "$2" && pwd)
    PATH=$bin:$PATH
    export PATH
    gms_mpi_allowances
    work=$(mktemp -d "/tmp/gms-$name-XXXXXX")
    run=$work/run
    up_log=$work/up.log
    : >"$up_log"
    GMS_RUN_DIR=$run
    export GMS_RUN_DIR
    up=
    deadline=$(($(date +%s) + ${UPKEEP_SECONDS:-100})) # below CTest's, so that what was started is ended here
    trap upkeep_finish EXIT
}

upkeep_finish() {
    code=$?
    if [ -n "$up" ]; then
        kill -TERM "$up" 2>/dev/null && kill -TERM "$up" 2>/dev/null # the second one hurries
        wait "$up" || true
    fi
    gms-keeper --run-dir "$run" --stop --force >/dev/null 2>&1 || true
    if [ "$code" != 0 ] && [ "$code" != 77 ]; then
        for log in "$up_log" "$run"/engine.*.log "$work"/*.out; do
            [ -e "$log" ] && echo "--- $log" >&2 && tail -n 60 "$log" >&2
        done
    fi
    rm -rf "$work"
    exit "$code"
}

fail() {
    echo "$name: $*" >&2
    exit 1
}

in_time() { # what
    [ "$(date +%s)" -lt "$deadline" ] || fail "$1: not in time"
    sleep 0.05 # a poll, not a wait
}

upkeep_config() { # standby settings, then what else
    cat >"$work/my.cfg" <<EOF
deployment = "$name";
run_dir = "$run";
ranks = 2;
memory : { capacity = "64MiB"; };
engine : { command = ( "${UPKEEP_COMMAND:-minillm}", "--slots", "${UPKEEP_SLOTS:-512}", "--listen", "unix:$work/e\${engine}", "--log-dir", "$work" ); };
launch : { engines = ( "mpirun", "-n", "\${world_size}" ); stop_signal = "USR1"; };
standby : { $1 };
${2:-}
complete = true;
EOF
    gms-coord --config "$work/my.cfg" --check >/dev/null
}

start_up() {
    gms-up --config "$work/my.cfg" >>"$up_log" 2>&1 &
    up=$!
}

stop_up() {
    scratch=$(sed -n 's/^[0-9]* [0-9]* \(.*\)\.job\.[0-9]*$/\1/p' "$run/up.job")
    [ -n "$scratch" ] || fail "$run/up.job names no scratch directory"
    kill -TERM "$up"
    wait "$up" || fail "gms-up ended with $? at a planned stop"
    up=
}

until_log() { # text
    until grep -qF -- "$1" "$up_log"; do
        kill -0 "$up" 2>/dev/null || fail "gms-up ended"
        in_time "\"$1\" in its log"
    done
}

# Of rank 0's engine N: its pid, "" for none.
pid_of() { # engine
    gms-ctl --rank 0 status --json | sed -n "s/.*{\"engine\":$1,\"incarnation\":[0-9]*,\"role\":\"[a-z]*\"[^}]*\"pid\":\\([0-9]*\\),.*/\\1/p"
}

serving() { gms-ctl --rank 0 status --json | sed -n 's/.*"serving_engine":\([-0-9]*\).*/\1/p'; }

# Engine numbers in a role, in order.
in_role() { # role
    gms-ctl --rank 0 status --json | tr '{' '\n' | sed -n "s/^\"engine\":\\([0-9]*\\),.*\"role\":\"$1\".*/\\1/p" | tr '\n' ' '
}

nothing_left() {
    ! gms-keeper --run-dir "$run" --status >/dev/null 2>&1 || fail "the keeper runs on"
    for rest in "$run"/up.* "$scratch".*; do
        [ "$rest" = "$run/up.lock" ] || [ ! -e "$rest" ] || fail "$rest is left"
    done
    for _ in 1 2 3 4 5 6 7 8 9 10; do # one may be in the middle of its exit
        running=$(pgrep -f -d , -- "$work" || true)
        [ -n "$running" ] || break
        sleep 0.05
    done
    [ -z "$running" ] || fail "processes are left: $(ps -o pid,args -p "$running" | head -n 5)"
}
