# For scripts that talk with a server: start_server PROGRAM MODEL LOG [options...] sets $url and $server; stop_server asks
# it to end and fails where it does not end with 0.
server=
start_server() {
    start_program=$1 start_model=$2 start_log=$3
    shift 3
    : >"$start_log" # what the one before said is not of this one
    "$start_program" serve "$start_model" --port 0 "$@" 2>"$start_log" &
    server=$!
    trap 'kill -9 "$server" 2>/dev/null || :' EXIT
    url=
    for _ in $(seq 600); do
        url=$(sed -n 's/.* on \(http:[^ ]*\) .*/\1/p' "$start_log")
        if [ -n "$url" ]; then return 0; fi
        kill -0 "$server" 2>/dev/null || break
        sleep 0.1
    done
    echo "the server did not start:"
    cat "$start_log"
    exit 1
}
stop_server() {
    kill "$server"
    status=0
    wait "$server" || status=$?
    trap - EXIT
    if [ "$status" -ne 0 ]; then
        echo "the server ended with $status:"
        cat "$start_log"
        return 1
    fi
}
