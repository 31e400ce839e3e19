#!/bin/sh
# install.sh BUILD SOURCE WORK PKG_CONFIG CC [CFLAGS]: the README's recipe for the library, followed to the letter, gives a
# program that works; it works elsewhere too; C++ can read the header where there is a C++ compiler.
set -eu
build=$1 source=$2 work=$3 pkg_config=$4 cc=$5 flags=${6:-}
rm -rf "$work"
mkdir -p "$work/bin" "$work/build" "$work/home"
# The repository as the README sees it, a home of our own, and a cc that is the compiler of this build.
ln -s "$build" "$work/build/release"
ln -s "$source/examples" "$source/models" "$work"
printf '#!/bin/sh\nexec "%s" -std=c11 -Wall -Wextra -Werror %s "$@"\n' "$cc" "$flags" >"$work/bin/cc"
printf '#!/bin/sh\nexec "%s" "$@"\n' "$pkg_config" >"$work/bin/pkg-config"
chmod +x "$work/bin/cc" "$work/bin/pkg-config"
sed -n '/^In a C program/,/^## /p' "$source/README.md" | sed -n '/^```$/,/^```$/p' | sed '/^```$/d' >"$work/recipe.sh"
[ "$(wc -l <"$work/recipe.sh")" -ge 2 ] || { echo "the README has no recipe for the library"; exit 1; }
(cd "$work" && env -u PKG_CONFIG_PATH HOME="$work/home" PATH="$work/bin:$PATH" sh -e recipe.sh) >"$work/log" 2>&1 ||
    { echo "the README's recipe fails:"; cat "$work/recipe.sh" "$work/log"; exit 1; }
root=$work/home/.local
for f in bin/moeflux include/moeflux.h; do
    [ -f "$root/$f" ] || { echo "$f was not installed"; exit 1; }
done
# what was installed knows where it is, also after it was moved
mv "$root" "$work/moved"
pc=$(find "$work/moved" -name moeflux.pc)
for path in -I"$work/moved" -L"$work/moved"; do
    PKG_CONFIG_PATH=$(dirname "$pc") "$pkg_config" --cflags --libs moeflux | grep -qF -e "$path" ||
        { echo "moeflux.pc does not say $path...: $(PKG_CONFIG_PATH=$(dirname "$pc") "$pkg_config" --cflags --libs moeflux)"; exit 1; }
done
told=$("$work/tell" "$source/models/stories-moe" "Once upon a time")
asked=$("$work/moved/bin/moeflux" run "$source/models/stories-moe" --raw --prompt "Once upon a time" --temperature 0 \
    --tokens 40 2>"$work/log")
[ -n "$told" ] || { echo "tell says nothing"; exit 1; }
if [ "$told" != "$asked" ]; then
    printf 'the example and the program disagree:\n%s\n--\n%s\n' "$told" "$asked"
    exit 1
fi
if "$work/tell" "$work" "x" 2>"$work/log"; then echo "a folder without a model is accepted"; exit 1; fi
# the program finds the model that was installed with it, from anywhere
(cd / && env XDG_DATA_HOME="$work/data" "$work/moved/bin/moeflux" run -q -n 2 >"$work/log" 2>&1) || { echo "no story from what was installed:"; cat "$work/log"; exit 1; }
# manual pages and completions: all commands and their options are in them
share=$work/moved/share
for page in moeflux moeflux-run moeflux-pull moeflux-serve; do
    [ -s "$share/man/man1/$page.1" ] || { echo "no manual page $page"; exit 1; }
done
grep -q '^.B \\-p, \\-\\-prompt TEXT' "$share/man/man1/moeflux-run.1" || { echo "moeflux-run.1 does not have --prompt"; exit 1; }
for f in bash-completion/completions/moeflux zsh/site-functions/_moeflux fish/vendor_completions.d/moeflux.fish; do
    grep -q 'dry-run' "$share/$f" || { echo "$f does not know convert --dry-run"; exit 1; }
done
if command -v bash >/dev/null; then
    reply=$(bash -c '. "$1"; COMP_WORDS=(moeflux convert --dry); COMP_CWORD=2; _moeflux; echo "${COMPREPLY[*]}"' - "$share/bash-completion/completions/moeflux")
    [ "$reply" = "--dry-run" ] || { echo "bash completes --dry to: $reply"; exit 1; }
fi
# find_package
if [ -z "$flags" ]; then
    mkdir "$work/package"
    printf 'cmake_minimum_required(VERSION 3.24)\nproject(p C)\nfind_package(moeflux 0.1 REQUIRED)\nadd_executable(p %s)\ntarget_link_libraries(p moeflux::moeflux)\n' \
        "$source/examples/tell.c" >"$work/package/CMakeLists.txt"
    { cmake -S "$work/package" -B "$work/package/build" -DCMAKE_PREFIX_PATH="$work/moved" -DCMAKE_C_COMPILER="$cc" &&
        cmake --build "$work/package/build" && "$work/package/build/p" "$source/models/stories-moe" "Once"; } >"$work/log" 2>&1 ||
        { echo "find_package(moeflux) fails:"; cat "$work/log"; exit 1; }
fi
# every symbol of the library is its own: mf_ or mf__ (those of the compiler's begin with two underscores)
lib=$(find "$work/moved" -name libmoeflux.a)
[ "$(nm -g --defined-only "$lib" 2>/dev/null | grep -c ' T mf_')" -gt 100 ] || { echo "nm finds no functions"; exit 1; }
foreign=$(nm -g --defined-only "$lib" 2>/dev/null | awk 'NF == 3 && $3 !~ /^(mf_|__)/ { print $3 }' | sort -u)
[ -z "$foreign" ] || { echo "symbols without the prefix mf_: $foreign"; exit 1; }
if command -v c++ >/dev/null; then
    printf '#include <moeflux.h>\nint main() { return mf_status_name(MF_OK)[0] == 0; }\n' >"$work/header.cc"
    c++ -Wall -Wextra -Werror -fsyntax-only -I "$work/moved/include" "$work/header.cc"
fi
