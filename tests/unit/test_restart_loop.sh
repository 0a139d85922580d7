#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# slurm/restart-loop.sh with a launcher that ends as it is told: which exit status ends the loop, which is started
# again, after which pauses, and what a signal to the loop does.
# shellcheck disable=SC2016 # what is quoted is for another shell
set -u
loop=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

# Takes the first line of the plan: an exit status; "kill": ends by SIGKILL; "settle N": lives N seconds and exits 75;
# "stay": until TERM, then exits 0; "deaf": until KILL. Each start is noted, in hundredths of a second since boot.
cat >"$dir/launcher" <<'END'
#!/bin/sh
dir=$(dirname -- "$0")
read -r up _ </proc/uptime
echo "${up%.*}${up#*.} $*" >>"$dir/starts"
line=$(sed -n 1p "$dir/plan")
sed -i 1d "$dir/plan"
case $line in
kill) kill -KILL $$ ;;
settle*) sleep "${line#settle }"; exit 75 ;;
stay) trap 'echo told >>"$dir/told"; exit 0' TERM; echo up >"$dir/up"; while :; do sleep 0.05; done ;;
deaf) trap '' TERM; echo up >"$dir/up"; while :; do sleep 0.05; done ;;
*) exit "$line" ;;
esac
END
chmod +x "$dir/launcher"

plan() {
    rm -f "$dir/starts" "$dir/up" "$dir/told" "$dir/err"
    printf '%s\n' "$@" >"$dir/plan"
}

check() { # WHAT EXPECTED GOT
    if [ "$2" != "$3" ]; then
        echo "$1: expected \"$2\", got \"$3\"" >&2
        sed 's/^/  | /' "$dir/err" >&2
        failed=1
    fi
}

starts() { wc -l <"$dir/starts" | tr -d ' '; }

# The time between start $1 and the next, in hundredths of a second, is at least $2 and below $3.
between() {
    first=$(sed -n "$1s/ .*//p" "$dir/starts")
    second=$(sed -n "$(($1 + 1))s/ .*//p" "$dir/starts")
    took=$((second - first))
    if [ "$took" -lt "$2" ] || [ "$took" -ge "$3" ]; then
        echo "pause $1: $took hundredths of a second, expected $2 to $3" >&2
        failed=1
    fi
}

wait_for() { # FILE, within 20 s
    tries=0
    until [ -e "$1" ]; do
        tries=$((tries + 1))
        [ "$tries" -lt 1000 ] || { echo "$1 does not appear" >&2; exit 1; }
        sleep 0.02
    done
}

# What ends it, with the words of the command as they were given.
for code in 0 64 70 78; do
    plan "$code"
    "$loop" -- "$dir/launcher" "two words" '$x' 2>"$dir/err"
    check "exit status of $code" "$code" $?
    check "starts after $code" 1 "$(starts)"
    check "words" 'two words $x' "$(cut -d' ' -f2- "$dir/starts")"
done

# What is started again: the restart status, a signal, whatever else; at once, then later and later.
plan 75 kill 1 75 0
"$loop" -- "$dir/launcher" 2>"$dir/err"
check "exit status after restarts" 0 $?
check "starts" 5 "$(starts)"
between 1 0 150
between 2 19 250
between 3 49 300
between 4 99 400

# The last pause is the longest, however often.
plan 75 75 75 75 75 75 75 0
"$loop" --pauses "0.05 0.1" -- "$dir/launcher" 2>"$dir/err"
check "exit status after many restarts" 0 $?
check "starts" 8 "$(starts)"
for i in 3 4 5 6 7; do
    between "$i" 9 200
done

# Who lived long enough is started again at once.
plan 75 75 "settle 2.1" 0
"$loop" --settled 2 --pauses "0.05 9" -- "$dir/launcher" 2>"$dir/err"
check "starts with a settled one" 4 "$(starts)"
between 3 209 600

# A planned stop: asked for in its own way, or by TERM to the launcher.
plan stay
"$loop" --stop "touch $dir/asked; kill -TERM \$(cat $dir/pid)" -- sh -c 'echo $$ >"$0/pid"; exec "$0/launcher"' "$dir" 2>"$dir/err" &
pid=$!
wait_for "$dir/up"
kill -TERM $pid
wait $pid
check "exit status of a planned stop" 0 $?
check "starts" 1 "$(starts)"
[ -e "$dir/asked" ] || { echo "the stop command did not run" >&2; failed=1; }
plan stay
"$loop" -- "$dir/launcher" 2>"$dir/err" &
pid=$!
wait_for "$dir/up"
kill -USR1 $pid
kill -TERM $pid # twice is once
wait $pid
check "exit status of a planned stop by TERM" 0 $?
check "told" "told" "$(cat "$dir/told")"

# Told between two starts: no other start.
plan 75 75 stay
"$loop" --pauses 30 -- "$dir/launcher" 2>"$dir/err" &
pid=$!
tries=0
until grep -q "in 30 s" "$dir/err" 2>/dev/null || [ "$tries" -ge 1000 ]; do
    tries=$((tries + 1))
    sleep 0.02
done
kill -TERM $pid
wait $pid
check "exit status when told between starts" 0 $?
check "starts" 2 "$(starts)"

# A launcher that does not listen is killed in the end.
plan deaf
"$loop" --grace 1 -- "$dir/launcher" 2>"$dir/err" &
pid=$!
wait_for "$dir/up"
kill -TERM $pid
wait $pid
check "exit status with a deaf launcher" 0 $?
grep -q "KILL to the launcher" "$dir/err" || { echo "it was not killed" >&2; failed=1; }

# Mistakes.
for words in "" "--settled" "--settled soon -- true" "--no-such -- true" "true"; do
    # shellcheck disable=SC2086 # a list of words
    "$loop" $words 2>"$dir/err"
    check "usage: $words" 64 $?
done
[ "$failed" = 0 ] && echo "restart-loop.sh: all as expected"
exit "$failed"
