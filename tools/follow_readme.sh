#!/bin/sh
# README.md followed literally on a fresh system: every line of its blocks of commands is run in a chroot, in order, in one
# shell. As root, with the network for packages.
#
#   debootstrap --variant=minbase bookworm FRESH
#   follow_readme.sh FRESH CHECKPOINT WORK [packages]
#
# CHECKPOINT, a small one with a tokenizer and a chat template, plays the model that README.md names: at that name on the
# hub, which tests/hub/hub.py plays with a certificate that the chroot trusts, and in /data. FRESH is not changed: WORK gets
# copies of it, and is to be removed afterwards. With `packages` the .deb is then made there, installed into a second fresh
# copy and run, and the Python package is installed with pip and its README's example run. `./dev test` is left out.
set -eu
[ $# -ge 3 ] || { sed -n 's/^# \{0,1\}//p' "$0" | head -n 11 && exit 2; }
fresh=$1 checkpoint=$2 work=$3 more=${4:-}
top=$(cd "$(dirname "$0")/.." && pwd)
model=Qwen/Qwen3.6-35B-A3B root=$work/chroot
mkdir "$work"

# ---- the system, with the sources and a hub --------------------------------------------------------------------------

copy() { # TO
    cp -a "$fresh" "$1"
    mount -t proc proc "$1/proc"
    cp /etc/resolv.conf "$1/etc/resolv.conf"
}
clean() {
    [ -z "${hub:-}" ] || kill "$hub"
    for r in "$root" "$work/second"; do umount "$r/proc" 2>/dev/null || true; done
}
trap clean EXIT

copy "$root"
mkdir -p "$root/root/moeflux" "$root/data" "$work/hub/${model%/*}"
git -C "$top" archive HEAD | tar -x -C "$root/root/moeflux"
cp -RL "$checkpoint" "$root/data/${model#*/}"
cp -RL "$checkpoint" "$work/hub/$model"
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=huggingface.co -addext subjectAltName=DNS:huggingface.co \
    -addext basicConstraints=CA:TRUE -keyout "$work/key" -out "$work/hub.crt" 2>/dev/null
cat "$work/key" "$work/hub.crt" >"$work/hub.pem"
mkdir -p "$root/usr/local/share/ca-certificates"
cp "$work/hub.crt" "$root/usr/local/share/ca-certificates/"
echo "127.0.0.1 localhost huggingface.co" >"$root/etc/hosts"
: >"$work/faults"
python3 "$top/tests/hub/hub.py" "$work/hub" "$work/faults" "$work/log" "$work/port" 443 "$work/hub.pem" 2>"$work/hub.err" &
hub=$!

# ---- README.md as a script ---------------------------------------------------------------------------------------------

# Lines of blocks; of the first, which is indented and explained, the first two words.
awk '/^```/ { inside = !inside; next } inside { print } /^    \.\/dev / { print $1, $2 }' "$top/README.md" >"$work/lines"
{
    echo "set -e; cd ~/moeflux; export HOME=/root"
    while IFS= read -r line; do
        printf "echo '--- %s'\n" "$(printf %s "$line" | sed "s/'/'\\\\''/g")"
        case $line in
        "./dev test"*) echo "echo left out" ;;
        moeflux\ serve*)
            printf '%s & server=$!\n' "${line%%#*}"
            echo "i=0; until (exec 3<>/dev/tcp/127.0.0.1/8080) 2>/dev/null || [ \$i -gt 100 ]; do sleep 0.2; i=\$((i + 1)); done"
            echo "exec 3<>/dev/tcp/127.0.0.1/8080; printf 'GET /v1/models HTTP/1.0\r\n\r\n' >&3; head -c 400 <&3; echo"
            echo "exec 3>&-; kill \$server; wait \$server || true"
            ;;
        *chat*) printf '%s </dev/null\n' "${line%%#*}" ;;
        *) printf '%s\n' "$line" ;;
        esac
    done <"$work/lines"
    echo "echo '--- all of it'"
} >"$root/root/follow"
chroot "$root" /bin/bash -O expand_aliases /root/follow

# ---- packages ------------------------------------------------------------------------------------------------------------

[ "$more" = packages ] || exit 0
cat >"$root/root/package" <<'END'
set -ex
cd ~/moeflux
apt-get install -q -y --no-install-recommends dpkg-dev file python3-venv python3-setuptools python3-wheel
cmake -B build/package -G Ninja -DCMAKE_BUILD_TYPE=Release -DMF_SHARED=ON -DMF_CUDA=OFF -DCMAKE_INSTALL_PREFIX=/usr
cmake --build build/package
(cd build/package && cpack -G DEB)
python3 -m venv --system-site-packages ~/venv
~/venv/bin/pip install --no-build-isolation ./bindings/python
export MOEFLUX_LIBRARY=$(find $PWD/build/package -name 'libmoeflux.so' | head -n 1)
awk '/^```/ { inside = $0 == "```python"; next } inside' bindings/python/README.md >~/example.py
~/venv/bin/python ~/example.py
END
chroot "$root" /bin/sh /root/package
copy "$work/second"
cp "$root"/root/moeflux/build/package/*.deb "$work/second/root/"
chroot "$work/second" /bin/sh -exc 'apt-get update -q && apt-get install -q -y --no-install-recommends /root/*.deb
    moeflux --version && moeflux run -n 20 -p "Once upon a time" && moeflux list && moeflux inspect stories-moe | tail -n 6'
echo "--- packages too"
