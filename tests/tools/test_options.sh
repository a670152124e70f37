#!/bin/bash
# tests/tools/test_options.sh - tools/test and tools/quickstart refuse wrong options before they do
# anything. $1 is the folder of the tools.
tools=$1
count=0 failures=0

check() { # name, expected exit code, expected text, command
    local name=$1 expected=$2 text=$3 output code
    shift 3
    output=$("$@" 2>&1 < /dev/null)
    code=$?
    count=$((count + 1))
    if [ $code = "$expected" ] && [[ $output == *"$text"* ]]; then
        echo "ok $count - $name"
    else
        printf '# exit code %s, output %s\n' "$code" "${output//$'\n'/ / }"
        echo "not ok $count - $name"
        failures=$((failures + 1))
    fi
}

check "tools/test names an unknown option" 2 'unknown option "--all"' "$tools/test" --all
check "tools/test has help" 0 'N passed, N failed, N skipped' "$tools/test" --help
check "tools/quickstart names an unknown option" 2 'unknown option "--stepz"' \
    "$tools/quickstart" --stepz 3
check "tools/quickstart has help" 0 '--text FILE' "$tools/quickstart" --help
check "tools/quickstart refuses steps that are no number" 2 '--steps "many"' \
    "$tools/quickstart" --steps many
check "tools/quickstart refuses zero steps" 2 '--steps "0"' "$tools/quickstart" --steps 0
check "tools/quickstart refuses a text that is not there" 2 '--text "/nonexistent"' \
    "$tools/quickstart" --text /nonexistent
check "tools/quickstart refuses an option without its value" 2 '"--work" needs a value' \
    "$tools/quickstart" --work

echo "1..$count"
exit $((failures > 0))
