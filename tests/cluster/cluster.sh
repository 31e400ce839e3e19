#!/bin/sh
# usage: cluster.sh MOEFLUX STORY_MODEL OTHER_CHECKPOINT WORK_DIR OTHER_RANK WRONG_RANK MOST_MEMORY [TURNS]: several ranks on
# this machine. The story told by two and three ranks, on whole directories and on shards, is the one that one tells, bit
# for bit; memory is what --ram says; ranks that do not fit together, end, stall, run out of memory, send nonsense or have
# a damaged file are named, and nothing hangs. Exit code 77 where there is no MPI. SHORT=1: a part of it, for sanitizers;
# PRELOAD: a library for the ranks, to go with them. TURNS (1): ranks are lost so often, and how long it took to say so is
# told; with more than one, more kinds of nonsense are tried, and moments by chance. ONLY=lost: nothing but lost ranks;
# ONLY=load: killed and stalled under load and another model, and nothing else.
set -u
export LC_ALL=C OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_btl_vader_single_copy_mechanism=none
moeflux=$1 stories=$2 checkpoint=$3 work=$4 other_rank=$5 wrong_rank=$6 most_memory=$7
turns=${8:-1} short=${SHORT:-} only=${ONLY:-} whole=
if [ -z "$short" ] && [ -z "$only" ]; then whole=1; fi
if ! command -v mpirun >/dev/null 2>&1 || ! "$moeflux" --version | grep -q "ranks of an MPI job"; then
    echo "NOT TESTED: SEVERAL RANKS. There is no mpirun, or moeflux was built without MPI."
    exit 77
fi
rm -rf "$work"
mkdir -p "$work"
cd "$work" || exit 1
export XDG_CACHE_HOME="$work/cache"
n_ok=0 n_bad=0

good() {
    n_ok=$((n_ok + 1))
    echo "ok: $1"
}
bad() { # TEXT [NAME of the job]
    n_bad=$((n_bad + 1))
    echo "NOT OK: $1"
    sed 's/^/    err: /' "${2:-x}.err" | head -n 12 | cut -c 1-300
}
# ranks NAME LINE...: a job whose ranks have these command lines, "N COMMAND" each; leaves NAME.out, NAME.err, NAME.code. At most
# two minutes.
ranks() {
    job=$1 line=
    shift
    for each in "$@"; do line="$line${line:+ : }-n ${each%% *} ${PRELOAD:+env LD_PRELOAD=$PRELOAD }${each#* }"; done
    own=$(mktemp -d) # two mpiruns that start at once would make the same folder
    # shellcheck disable=SC2086
    TMPDIR=$own timeout -k 5 "${limit:-120}" mpirun --oversubscribe --bind-to none $line >"$job.out" 2>"$job.err" <"${input:-/dev/null}"
    echo $? >"$job.code"
    date +%s.%N >"$job.end"
    rm -rf "$own"
}
# says NAME TEXT: the job ended with another exit code than 0, and rank 0 said TEXT, once
says() {
    code=$(cat "$1.code")
    if [ "$code" -eq 0 ] || [ "$code" -eq 124 ] || [ "$code" -eq 137 ]; then
        bad "$1: exit code $code" "$1"
    elif [ "$(grep -c -e "moeflux: .*$2" "$1.err")" -ne 1 ]; then
        bad "$1: \"$2\" is not said once" "$1"
    else
        good "$1"
    fi
}
same() { # NAME: the job told what one process tells
    if [ "$(cat "$1.code")" -eq 0 ] && cmp -s alone.out "$1.out"; then good "$1: the same bits"; else bad "$1: other bits" "$1"; fi
}

told="--prompt Once_upon_a_time -n ${TOKENS:-60} --temperature 0 --threads 1"
[ -z "$short" ] || told="--prompt Once -n 8 --temperature 0 --threads 1"
# shellcheck disable=SC2086
"$moeflux" run "$stories" $told --record-routes routes >alone.out 2>alone.err || bad "one process" alone

# ---- shards
shard() { # NAME OPTIONS...
    shard=$1
    shift
    "$moeflux" shard "$stories" "$shard" "$@" >x.out 2>x.err
}
for k in 0 1 2; do
    shard three-$k --ranks 3 --rank $k --placement routes --copies 20 || bad "share $k of 3" x
    "$moeflux" verify three-$k 2>x.err || bad "verify of share $k" x
done
shard two-1 --ranks 2 --rank 1 --shares 2,1 || bad "share 1 of 2" x
if [ -n "$whole" ]; then
    (
        ulimit -f 2000
        shard late --ranks 2 --rank 0
    )
    mkdir -p late.partial/packed_experts/layer_05.bin.tmp
    if shard late --ranks 2 --rank 0 || [ -e late ]; then bad "a share that could not be written" x; else good "complete or absent"; fi
    rmdir late.partial/packed_experts/layer_05.bin.tmp
    inode=$(ls -i late.partial/packed_experts/layer_04.bin)
    shard late --ranks 2 --rank 1
    if grep -q 'another shard' x.err; then good "another shard is not gone on with"; else bad "gone on with another" x; fi
    if shard late --ranks 2 --rank 0 && "$moeflux" verify late 2>x.err &&
        [ "${inode%% *}" = "$(ls -i late/packed_experts/layer_04.bin | sed 's/ .*//')" ]; then
        good "a share goes on where it was"
    else
        bad "does not go on" x
    fi
    if shard late --ranks 2 --rank 0; then bad "written over" x; else good "nothing is written over"; fi
    shard two --ranks 2 --rank 1 --dry-run
    if grep -q 'rank 1 of 2: .* experts' x.out && [ ! -e two ]; then good "dry run"; else bad "dry run" x; fi
    shard two --ranks 4 --rank 1 --dry-run --placement routes
    above=$(sed -n 's/.*busiest rank in routes: \([0-9]*\)\.[0-9]* % above.*/\1/p' x.err)
    if [ "${above:-99}" -lt 5 ]; then good "the work of a text is even"; else bad "the work of a text is not even" x; fi
    for wrong in "--ranks 2" "--ranks 2 --rank 2" "--ranks 2 --rank 1 --shares 1" "--ranks 2 --rank 0 --copies 5"; do
        # shellcheck disable=SC2086
        shard wrong $wrong && bad "shard $wrong" x
    done
    if "$moeflux" shard two-1 x --ranks 2 --rank 1 2>x.err; then bad "a share of a share" x; else good "a share of a share"; fi
    # A byte of the first expert of layer 3 that the share has.
    cp -r two-1 flipped
    stride=$(sed -n 's/.*"stride": *\([0-9]*\).*/\1/p' flipped/model_weights.json | head -n 1)
    expert=$(awk 'NR == 6 && match($0, /[23]/) { print RSTART - 4 }' flipped/shard.json)
    printf '\377\376\375' | dd of=flipped/packed_experts/layer_03.bin bs=1 seek=$((expert * stride + 99)) conv=notrunc 2>/dev/null
    if "$moeflux" verify flipped 2>x.err || ! grep -q 'layer 3, expert .* is damaged' x.err; then
        bad "a flipped bit in a share" x
    else
        good "a flipped bit in a share"
    fi
fi
for k in 0 1; do # alone
    "$moeflux" run three-$k --prompt x -n 1 >x.out 2>x.err
    if [ $? -eq 1 ] && grep -q "the shard of rank $k of 3, and has no other experts" x.err; then good "share $k alone"; else bad "share $k alone" x; fi
done

if [ -z "$short" ]; then "$moeflux" convert "$checkpoint" other --bits keep >/dev/null 2>x.err || bad "convert" x; fi

# ---- the same bits
run="$moeflux run"
tell="$run $stories $told"
ranks three "1 $tell" "1 $run three-1 $told" "1 $run three-2 $told"
same three
if grep -q 'rank 2 on .* messages' three.err; then good "the ranks' numbers are told"; else bad "no numbers" three; fi
if grep -q lossy three.err; then bad "lossy by default" three; fi
if [ -n "$whole" ]; then
    OMPI_COMM_WORLD_SIZE=1 OMPI_COMM_WORLD_RANK=0 $tell >one.out 2>one.err
    echo $? >one.code
    same one
    ranks shards "1 $run three-0 $told" "1 $run three-1 $told" "1 $tell"
    same shards
    ranks check "2 $moeflux check other $checkpoint/golden.safetensors --threads 1"
    if [ "$(cat check.code)" -eq 0 ]; then good "recorded logits, 2 ranks"; else bad "recorded logits, 2 ranks" check; fi

    # Half the bytes, and it is said.
    ranks half "2 $tell --wire f16 --placement routes"
    bytes() { # NAME: of the messages, in kB
        sed -n 's/.*messages, \([0-9.]*\) \([kM]\)B out, \([0-9.]*\) \([kM]\)B back.*/\1 \2 \3 \4/p' "$1.err" |
            awk '{ print int($1 * ($2 == "M" ? 1000 : 1) + $3 * ($4 == "M" ? 1000 : 1)) }'
    }
    ranks whole "2 $tell --placement routes"
    same whole
    echo "bytes: $(bytes whole) kB, with f16 $(bytes half) kB"
    if [ "$(cat half.code)" -eq 0 ] && grep -q 'lossy: --wire f16' half.err &&
        [ "$(bytes half)" -lt $(($(bytes whole) * 62 / 100)) ] && [ "$(bytes half)" -gt 10 ]; then
        good "--wire f16"
    else
        bad "--wire f16" half
    fi
fi

# ---- ranks that do not fit together: two jobs at a time
few="--prompt Once -n 5 --temperature 0 --threads 1"
once="$run $stories $few"
ranks other-version "1 $once" "1 $other_rank" &
ranks other-share "1 $once" "1 $run three-2 $few" "1 $run three-1 $few"
wait $!
says other-version 'rank 1 on elsewhere has moeflux 0.0.1'
says other-share 'rank 1 on .* has in .*three-2 the share of rank 2: '
if [ -n "$whole" ]; then
    ranks other-model "1 $once" "1 $run other $few" &
    ranks other-options "1 $once" "1 $once --exact"
    wait $!
    says other-model 'rank 1 on .* has another model'
    says other-options 'rank 1 on .* has the model of rank 0 on .* and other options'
    ranks other-backend "1 $once" "1 $once --backend ref" &
    ranks no-model "1 $once" "1 $run nowhere $few"
    wait $!
    says other-backend 'rank 1 on .* has the backend and instruction set ref'
    says no-model 'rank 1 on .*'
    ranks no-first-model "1 $run nowhere $few" "1 $once" &
    ranks wrong-option "2 $moeflux run $stories --no-such-option"
    wait $!
    says no-first-model 'nowhere'
    says wrong-option 'no-such-option'
    ranks other-size "1 $once" "1 $run three-1 $few" &
    ranks other-placement "1 $run late $few" "1 $run two-1 $few"
    wait $!
    says other-size 'the share of rank 1 of 3, and this job has 2 ranks'
    says other-placement 'rank 1 on .* has a share of another placement than rank 0'
    ranks wrong-rank "1 $once" "1 $once --wire f16" &
    ranks bad-routes "2 $once --placement $stories/config.json"
    wait $!
    says wrong-rank 'rank 1 on .* has --placement or --wire, which rank 0 decides'
    says bad-routes 'is no file of routes'
    ranks placed-share "1 $once --placement routes" "1 $run two-1 $few" &
    ranks mixed "1 $once --mixed" "1 $once --backend ref --exact --mixed"
    wait $!
    says placed-share 'placement is for whole directories'
    if [ "$(cat mixed.code)" -eq 0 ] && grep -q 'rank 1 on .* computes with ref' mixed.err; then good mixed; else bad mixed mixed; fi
    ranks no-cache "2 $once --wire f16 --cache-dir states" &
    ranks help "2 $moeflux run --help"
    wait $!
    says no-cache 'cache-dir excludes --wire f16'
    if [ "$(grep -c '^usage' help.out)" -eq 1 ]; then good "help once"; else bad "help" help; fi
    for option in "--stall-limit 5" "--placement routes" "--wire f16" --mixed; do
        # shellcheck disable=SC2086
        $once $option >alone-option.out 2>alone-option.err
        echo $? >alone-option.code
        says alone-option "${option%% *} is for several ranks"
    done
fi

# ---- ranks that send nonsense, or have no memory
# wrong NAME RANK SETTING TEXT [OPTIONS]: in a job of two, of which that rank has the library with this setting
wrong() {
    set -- "$1" "$2" "$3" "$4" "$run $stories --prompt Once -n 40 --temperature 0 --threads 1 --stall-limit 3 ${5:-}"
    with="1 env $3 LD_PRELOAD=$wrong_rank${PRELOAD:+:$PRELOAD} $5"
    began=$(date +%s)
    if [ "$2" -eq 0 ]; then ranks "$1" "$with" "1 $5"; else ranks "$1" "1 $5" "$with"; fi
    if [ -n "$4" ]; then says "$1" "$4"; fi
    if [ $(($(date +%s) - began)) -gt 30 ]; then bad "$1: it took long" "$1"; fi
}
if [ -z "$only" ]; then
    all="many-rows no-rows minus-rows more-pairs many-pairs format expert wanted tiny-request cut-request decode layer kind"
    [ "$turns" -gt 1 ] || all="many-rows minus-rows more-pairs expert cut-request layer kind"
    [ -z "$short" ] || all="many-rows more-pairs expert tiny-request kind"
    for how in $all; do
        wrong "request-$how" 0 "WRONG=$how" 'rank 1 on .* failed: \|rank 1 on .* cannot be reached'
    done
    all="magic seq fewer-pairs cut-reply tiny-reply empty-reply long-reply no-text"
    [ "$turns" -gt 1 ] || all="magic fewer-pairs cut-reply long-reply no-text"
    [ -z "$short" ] || all="tiny-reply long-reply no-text"
    for how in $all; do wrong "reply-$how" 1 "WRONG=$how" 'rank 1 on .* \(gave an answer\|failed: \|cannot be reached\)'; done
    wrong work-as-end 0 WRONG=work-as-end 'rank 1 on .* \(failed\|has ended\|has not answered\)'
fi
if [ -n "$whole" ]; then
    for rank in 0 1; do
        refused=0 places="1 2 4 6"
        [ "$turns" -gt 1 ] && places="1 2 3 4 5 6 7 8"
        for n in $places; do
            wrong "refused-$rank-$n" $rank REFUSE=$n "" "--placement routes"
            code=$(cat "refused-$rank-$n.code")
            if [ "$code" -eq 0 ]; then continue; fi
            refused=$((refused + 1))
            grep -q 'moeflux: .*no memory' "refused-$rank-$n.err" && [ "$code" -eq 1 ] || bad "no memory on rank $rank, $n: $code" "refused-$rank-$n"
        done
        if [ "$refused" -gt 1 ]; then good "rank $rank has no memory, $refused of the places $places"; else bad "rank $rank had memory" x; fi
    done
    ranks too-little "1 $once --ram 300M --chunk 4096" "1 $once --ram 60M --chunk 4096"
    says too-little 'rank 1 on .*: no memory for requests of .* rows'
fi

# ---- memory: a long prompt in one chunk, with messages of megabytes
if [ -n "$whole" ]; then
    mkdir long
    for file in "$stories"/*; do ln -s "$file" long/; done
    rm long/config.json
    sed 's/"max_position_embeddings": *[0-9]*/"max_position_embeddings": 65536/' "$stories/config.json" >long/config.json
    awk 'BEGIN { for (i = 0; i < 700; i++) printf("Once there was a cat %d. ", i) }' >text
    "$moeflux" shard long long-1 --ranks 2 --rank 1 --shares 1,30 >x.out 2>x.err || bad "a share of nearly all" x
    long="--raw --prompt - -n 4 --temperature 0 --threads 1 --chunk 8000 --ctx 8000"
    # shellcheck disable=SC2086
    $run long $long <text >alone.out 2>alone.err
    for wire in f32 f16; do
        ram0=420
        input=text ranks x "1 $run long $long --ram ${ram0}M --wire $wire" "1 $run long-1 $long --ram 60M --wire $wire"
        ram1=$(sed -n 's/.*rank 1 .*at least --ram \([0-9]*\)M.*/\1/p' x.err)
        input=text ranks memory-$wire "1 $most_memory peak0 - $run long $long --ram ${ram0}M --wire $wire" \
            "1 $most_memory peak1 - $run long-1 $long --ram ${ram1}M --wire $wire"
        echo "    $(cat peak0) of $((ram0 * 1024)) KiB, $(cat peak1) of $((ram1 * 1024)) KiB"
        if [ "$(cat memory-$wire.code)" -ne 0 ]; then
            bad "memory, $wire" memory-$wire
        elif [ "$(cat peak0)" -gt $((ram0 * 1024)) ] || [ "$(cat peak1)" -gt $((ram1 * 1024)) ]; then
            bad "memory, $wire: more than --ram" memory-$wire
        else
            good "memory, $wire"
        fi
    done
    same memory-f32
fi

# ---- ranks that are lost
# lost NAME COMMAND [N]: a long run of two ranks, or 1 + N, in the middle of which the command is evaluated; $second are the
# processes of the others. $stall: the limit; a busy machine may hold up a rank that is well for a second.
lost() {
    rm -f second "$1.err"
    ranks "$1" "1 $moeflux bench $stories --prefill 0 --decode 300 --repeat 50 --threads 1 --stall-limit $stall" "${3:-1} sh second.sh" &
    pid=$!
    for _ in $(seq 600); do
        if grep -q 'ranks share' "$1.err" 2>/dev/null; then break; fi
        sleep 0.05
    done
    sleep 0.3
    second=$(cat second)
    date +%s.%N >"$1.began"
    eval "$2"
    wait $pid
    took "$1"
}
took() { # NAME: how long it took from the command to the end of the job
    seconds=$(echo "$(cat "$1.began") $(cat "$1.end")" | awk '{ printf("%.1f", $2 - $1) }')
    echo "    $1: the job ended after $seconds s"
    if [ "${seconds%.*}" -gt 20 ]; then bad "$1 took long" "$1"; fi
}
gone() { # NAME: the other ranks' processes end, too
    for _ in $(seq 100); do
        there=
        for each in $second; do if kill -0 "$each" 2>/dev/null; then there=$each; fi; done
        if [ -z "$there" ]; then return 0; fi
        sleep 0.1
    done
    bad "$1: process $there is still there" "$1"
}
# early NAME SIGNAL SECONDS: the second rank gets a signal so long after it was started, wherever it is then. Open MPI 4.1's
# mpirun now and then stays itself, with no rank left, when one dies while it is started: that is said, and not our fault.
early() {
    rm -f second first
    limit=30 ranks "$1" "1 sh first.sh --stall-limit 1" "1 sh second.sh --stall-limit 1" &
    pid=$!
    while [ ! -s second ]; do sleep 0.01; done
    second=$(cat second)
    sleep "$3"
    date +%s.%N >"$1.began"
    kill -s "$2" "$second" 2>/dev/null
    wait $pid
    gone "$1"
    code=$(cat "$1.code")
    if [ "$2" = KILL ] && [ -e first ] && ! kill -0 "$(cat first)" 2>/dev/null && grep -q 'exited on signal 9' "$1.err" &&
        grep -q '^Killed' "$1.err"; then
        good "$1 after $3 s: no rank is left, but mpirun had to be ended"
        return
    fi
    [ "$code" -eq 0 ] || took "$1"
    if [ "$code" -eq 0 ]; then # it had ended, or the command did not need it any more
        cmp -s few.out "$1.out" && good "$1 after $3 s: too late" || bad "$1 after $3 s: another text" "$1"
    elif [ "$code" -ne 124 ] && grep -q '^moeflux: .*\(has not\|job ends\|ended\)\|exited on signal' "$1.err"; then
        good "$1 after $3 s: $(grep -o '^moeflux: .*\(has not\|job ends\|ended\).*\|exited on signal [0-9]*' "$1.err" | tail -n 1 | cut -c 1-100)"
    else
        bad "$1 after $3 s: exit code $code" "$1"
    fi
}
# idle NAME SIGNAL: the second rank gets a signal while rank 0 waits for somebody to type, who then ends it
idle() {
    rm -f second type "$1.err"
    mkfifo type
    input=type ranks "$1" "1 $moeflux chat $stories --stall-limit 1 --threads 1" "1 sh second.sh" &
    pid=$!
    exec 9>type
    for _ in $(seq 600); do
        if grep -q 'ranks share' "$1.err" 2>/dev/null; then break; fi
        sleep 0.05
    done
    sleep 0.5
    second=$(cat second)
    date +%s.%N >"$1.began"
    kill -s "$2" "$second"
    exec 9>&-
    wait $pid
    took "$1"
    gone "$1"
}
stall=15
printf 'echo $$ >first\nexec %s "$@"\n' "$once" >first.sh
second_is() { # COMMAND
    printf 'echo $$ >>second\nexec %s "$@"\n' "$1" >second.sh
}
# shellcheck disable=SC2086
$once >few.out 2>few.err || bad "one process" few
for turn in $(seq "$turns"); do
    rm -rf cut
    cp -r two-1 cut
    if [ -z "$short" ]; then
        second_is "$moeflux bench cut --prefill 0 --decode 300 --repeat 50 --threads 1"
        stall=1
        lost stalled 'kill -s STOP $second'
        stall=15
        says stalled 'rank 1 on .* has not answered for 1 s (layer '
        gone stalled
        lost killed 'kill -s KILL $second'
        code=$(cat killed.code)
        if [ "$code" -ne 0 ] && [ "$code" -ne 124 ] && grep -q 'rank 1 .*\(exited on signal 9\|has ended\)' killed.err; then
            good "a rank that is killed ($turn)"
        else
            bad "a rank that is killed: exit code $code" killed
        fi
        date +%s.%N >model.began
        ranks model "1 $once" "1 $run three-1 $few" "1 $run other $few"
        took model
        says model 'rank 2 on .* has another model'
        if [ "$only" = load ]; then continue; fi
        second_is "$moeflux bench $stories --prefill 0 --decode 300 --repeat 50 --threads 1"
        stall=1
        lost both 'kill -s STOP $second' 2
        stall=15
        says both 'rank [12] on .* has not answered for 1 s (layer '
        gone both
        second_is "$moeflux chat $stories --stall-limit 1 --threads 1"
        idle idle-stalled STOP
        says idle-stalled 'rank 1 on .* has not answered for 1 s'
        idle idle-killed KILL
        [ "$(cat idle-killed.code)" -ne 124 ] && good idle-killed || bad idle-killed idle-killed
        second_is "$once"
        # Moments by chance, and mpirun's own faults: not where a failure is to mean something (TURNS 1).
        [ "$turns" -gt 1 ] && for after in 0 0.$(od -A n -N 2 -t u2 /dev/urandom | awk '{ printf("%03d", $1 % 700) }'); do
            early stopped-early STOP $after
            early killed-early KILL $after
        done
    fi
    second_is "$moeflux bench cut --prefill 0 --decode 300 --repeat 50 --threads 1"
    lost damaged 'for f in cut/packed_experts/*; do : >"$f"; done'
    says damaged 'rank 1 on .* failed: .*cut/packed_experts/layer_0'
done

echo "$n_ok ok, $n_bad not"
[ "$n_bad" -eq 0 ] && [ "$n_ok" -gt 5 ]
