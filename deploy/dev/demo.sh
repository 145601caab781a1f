#!/usr/bin/env bash
# The main job on real input: one chunk for each Rust source file of the project's own dependencies, as cargo has unpacked
# them. A coordinator and two workers, each a process of its own, count the lines of every file; the total is compared with a
# direct count of the same files, and `runherd verify` checks the books. Ends with status 0 only if all agree.
#
# Called by deploy/dev/with-servers.sh (see `make demo`), which names the servers in the environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

cargo build --package runherd --locked
mkdir -p .run
work=$(mktemp -d "$PWD/.run/demo.XXXXXX")
runherd=$work/runherd
cp "$(cargo metadata --format-version 1 --no-deps | grep -o '"target_directory":"[^"]*"' | cut -d '"' -f 4)/debug/runherd" "$runherd"

pids=()
cleanup() {
    status=$?
    trap - EXIT INT TERM
    for pid in "${pids[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in "${pids[@]}"; do wait "$pid" 2>/dev/null || true; done
    if ((status == 0 || status == 130 || status == 143)); then rm -rf "$work"; else echo "demo: logs are in $work" >&2; fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# A database and a configuration of its own.
export RUNHERD__CONTROL__URL=$RUNHERD_TEST_PG_URL
export RUNHERD__BROKER__URL=$RUNHERD_TEST_AMQP_URL
# Its usual place is for the coordinator that somebody operates here.
export RUNHERD__RUNTIME__CONTROL_SOCKET=none
"$runherd" migrate

echo "demo: collecting the source files of the project's dependencies"
cargo metadata --format-version 1 --locked 2>/dev/null | grep -o '"manifest_path":"[^"]*/registry/src/[^"]*"' | cut -d '"' -f 4 |
    sort -u | while read -r manifest; do find "$(dirname "$manifest")" -name '*.rs' -type f; done | sort > "$work/files"
files=$(wc -l < "$work/files")
if ((files == 0)); then
    echo "demo: cargo has unpacked no dependencies" >&2
    exit 1
fi

echo "demo: starting a coordinator and two workers"
"$runherd" serve > /dev/null 2> "$work/coordinator.log" & pids+=($!)
for n in 1 2; do
    # shellcheck disable=SC2016 # the worker's shell expands it, for each chunk
    "$runherd" worker --queue demo --concurrency 4 -- sh -c 'wc -l < "$RUNHERD_PAYLOAD_TEXT"' \
        > /dev/null 2> "$work/worker-$n.log" & pids+=($!)
done

echo "demo: submitting $files files, one chunk each"
started=$(date +%s%N)
run=$("$runherd" submit --queue demo --name demo --shards 4 --lines "$work/files")
outcome=0
"$runherd" watch "$run" || outcome=$?
ended=$(date +%s%N)

"$runherd" results "$run" > "$work/results"
expected=$(tr '\n' '\0' < "$work/files" | xargs -0 cat | wc -l)
# One JSON object a line; the demo's outcomes are plain numbers.
read -r succeeded failed recoveries attempts lines < <(awk '
    /"status":"succeeded"/ { succeeded++ }
    /"status":"failed"/ { failed++ }
    match($0, /"recoveries":[0-9]+/) { recoveries += substr($0, RSTART + 13, RLENGTH - 13) }
    match($0, /"attempts":[0-9]+/) { attempts += substr($0, RSTART + 11, RLENGTH - 11) }
    match($0, /"outcome":[0-9]+/) { lines += substr($0, RSTART + 10, RLENGTH - 10) }
    END { printf "%d %d %d %d %d\n", succeeded, failed, recoveries, attempts, lines }' "$work/results")
milliseconds=$(((ended - started) / 1000000))
verified=0
"$runherd" verify "$run" > "$work/verify" || verified=$?
# The last columns of its table: what was checked, the unit, the violations.
events=$(awk '$1 == "I7" { print $(NF - 2) }' "$work/verify")
published=$(awk '$1 == "I8" { print $(NF - 2) }' "$work/verify")

echo
"$runherd" status "$run"
echo
echo "chunks        $files submitted, $succeeded succeeded, $failed failed"
echo "attempts      $attempts, recoveries $recoveries"
echo "throughput    $((files * 1000 / (milliseconds > 0 ? milliseconds : 1))) chunks/s, from submission to the end in $milliseconds ms"
echo "outbox        $published of $events events published with the broker's confirmation"
echo "lines         $lines counted by the workers, $expected counted directly"
echo
cat "$work/verify"

if ((outcome == 0 && verified == 0 && published == events && succeeded == files && failed == 0 && lines == expected)); then
    echo "demo: all agree"
else
    echo "demo: the run, the books and the direct count do not agree" >&2
    exit 1
fi
