#!/bin/sh
# install.sh BUILD SOURCE WORK PKG_CONFIG CC [CFLAGS]: what gets installed is enough to build and run a program, and C++ can read
# the header where there is a C++ compiler.
set -eu
build=$1 source=$2 work=$3 pkg_config=$4 cc=$5 flags=${6:-}
rm -rf "$work"
mkdir -p "$work"
cmake --install "$build" --prefix "$work/root" >"$work/log"
for f in bin/moeflux include/moeflux.h; do
    [ -f "$work/root/$f" ] || { echo "$f was not installed"; exit 1; }
done
pc=$(find "$work/root" -name moeflux.pc)
# the prefix of the installation is not the one that the build was configured for
# shellcheck disable=SC2046,SC2086
"$cc" -std=c11 -Wall -Wextra -Werror $flags "$source/examples/tell.c" \
    $(PKG_CONFIG_PATH=$(dirname "$pc") "$pkg_config" --define-variable=prefix="$work/root" --static --cflags --libs moeflux) \
    -o "$work/tell"
told=$("$work/tell" "$source/models/stories-moe" "Once upon a time")
asked=$("$work/root/bin/moeflux" run "$source/models/stories-moe" --raw --prompt "Once upon a time" --temperature 0 \
    --tokens 40 2>"$work/log")
[ -n "$told" ] || { echo "tell says nothing"; exit 1; }
if [ "$told" != "$asked" ]; then
    printf 'the example and the program disagree:\n%s\n--\n%s\n' "$told" "$asked"
    exit 1
fi
if "$work/tell" "$work" "x" 2>"$work/log"; then echo "a folder without a model is accepted"; exit 1; fi
if command -v c++ >/dev/null; then
    printf '#include <moeflux.h>\nint main() { return mf_status_name(MF_OK)[0] == 0; }\n' >"$work/header.cc"
    c++ -Wall -Wextra -Werror -fsyntax-only -I "$work/root/include" "$work/header.cc"
fi
