# Functions for CI: steps that note how long they take, and a table at the end with the peaks of disk and memory.
# Usage: source .ci/steps.sh; start_measuring; step NAME COMMAND [ARGUMENT...]

NEEDED_GB=15  # of disk; CI's own peak is less, as the table at its end shows

# Stop before any work if the disk would become full midway.
check_disk() {
    local free_gb
    free_gb="$(df -Pk . | awk 'NR == 2 { print int($4 / 2^20) }')"
    if ((free_gb >= NEEDED_GB)); then return; fi
    echo "CI needs $NEEDED_GB GB of disk, and $free_gb GB are free. Remove what nobody needs of these, the largest first:"
    # A folder that does not exist is no error here.
    du -sh .venv build "$(python3 -m pip cache dir)" "${TMPDIR:-/tmp}"/* 2>/dev/null | sort -rh | head -n 8 || true
    exit 1
}

start_measuring() {
    measures="$(mktemp -d)"
    leftovers=("$measures")  # folders that are removed at the end, whether it succeeds or fails
    touch "$measures/steps"
    _watch "$(_disk_kb)" &
    watcher=$!
    trap _finish EXIT
}

step() {
    local name="$1" start=$SECONDS
    shift
    echo "== $name"
    echo "started|$name" >>"$measures/steps"
    "$@"  # not in a condition, in which a function would go on after an error
    echo "done|$name|$((SECONDS - start))" >>"$measures/steps"
}

_disk_kb() { df -Pk . | awk 'NR == 2 { print $3 }'; }

_memory_kb() { awk '/^MemTotal/ { all = $2 } /^MemAvailable/ { print all - $2 }' /proc/meminfo 2>/dev/null || true; }

# Keep the peaks in a file: the disk beside what was used at the start, and the memory in use on this machine.
_watch() {
    local disk memory most_disk=0 most_memory=0
    while true; do
        disk=$(($(_disk_kb) - $1))
        memory="$(_memory_kb)"
        if ((disk > most_disk)); then most_disk=$disk; fi
        if ((${memory:-0} > most_memory)); then most_memory=$memory; fi
        echo "$most_disk $most_memory" >"$measures/new" && mv "$measures/new" "$measures/peaks"
        sleep 2
    done
}

_finish() {
    kill "$watcher"
    wait || true  # for steps beside one that failed
    echo
    awk -F'|' -v all="$SECONDS" '
        BEGIN { printf "%-32s minutes\n", "step" }
        $1 == "started" { running[$2] = 1 }
        $1 == "done" { delete running[$2]; printf "%-32s %7.1f\n", $2, $3 / 60 }
        END { for (name in running) printf "%-32s  failed\n", name
              printf "%-32s %7.1f\n", "all, some of it side by side", all / 60 }
    ' "$measures/steps"
    awk '{ printf "Peaks: %.1f GB of disk beside the checkout, %.1f GB of memory on this machine.\n", $1 / 2^20, $2 / 2^20 }' \
        "$measures/peaks"
    rm -rf "${leftovers[@]}"
}
