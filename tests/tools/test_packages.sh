#!/bin/bash
# tests/tools/test_packages.sh - what tools/packages says and does; dpkg, apt and id are made up.
. "$1"
count=0 failures=0
commands=$(mktemp -d) || exit 1
trap 'rm -rf "$commands"' EXIT
# The folder holds nothing but these: a machine without one of them is a removed file.
for real in bash grep; do
    at=$(type -P $real) && ln -s "$at" "$commands/$real"
done

make() { # a made-up command: its name, its body
    printf '#!/bin/bash\n%s\n' "$2" > "$commands/$1"
    chmod +x "$commands/$1"
}

fresh() { # uid; nothing but gcc installed
    make id "echo $1"
    make dpkg-query '[ "${@: -1}" = gcc ] && echo installed'
    make apt-get "echo \"\$*\" >> $commands/log"
    rm -f "$commands/log"
    touch "$commands/log"
}

check() { # name, then a command that must succeed
    local name=$1
    shift
    count=$((count + 1))
    if "$@"; then
        echo "ok $count - $name"
    else
        echo "# $(tr '\n' ' ' < "$commands/out") / $(tr '\n' ' ' < "$commands/log")"
        echo "not ok $count - $name"
        failures=$((failures + 1))
    fi
}

need() {
    (PATH=$commands && zinf_need_packages "$@") > "$commands/out" 2>&1
    code=$?
}

fresh 0
need gcc
check "nothing is installed where nothing is missing" [ $code = 0 -a ! -s "$commands/log" ]

fresh 0
need gcc meson ninja-build
check "root installs only what is missing" \
    grep -qx 'install -y -q --no-install-recommends meson ninja-build' "$commands/log"
check "an install that succeeds goes on" [ $code = 0 ]
check "package lists are not fetched without need" [ "$(grep -c update "$commands/log")" = 0 ]

fresh 1000
need gcc meson ninja-build
check "without root the exit code is 4" [ $code = 4 ]
check "without root the packages are named" \
    grep -q 'apt-get install .*meson ninja-build' "$commands/out"
check "without root apt is not started" [ ! -s "$commands/log" ]

fresh 0
make apt-get "echo \"\$*\" >> $commands/log; [ \"\$1\" = update ] && : > $commands/lists
[ -e $commands/lists ]"
need meson
check "stale package lists are fetched once, then it is tried again" \
    [ "$(grep -c install "$commands/log") $(grep -c update "$commands/log") $code" = "2 1 0" ]

fresh 0
make apt-get 'exit 100'
need meson
check "an install that fails ends with 4" [ $code = 4 ]

fresh 0
rm "$commands/apt-get"
need meson
check "root without apt is told what to install" [ $code = 4 ]

fresh 0
rm "$commands/dpkg-query"
need meson
check "a machine without dpkg is left to meson" [ $code = 0 ]

echo "1..$count"
exit $((failures > 0))
