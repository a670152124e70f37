#!/bin/bash
# tests/tools/test_bench.sh - the kernels' items of tools/bench run to their ends and print what
# they say: a name, a positive figure, what it is of. $1 is zinf-bench. How large the figures are is
# not tested here. glibc is told to look at its heap, which an item that writes past its memory
# spoils.
bench=$1 count=0 failures=0

for item in peak gemm attention adam elementwise; do
    count=$((count + 1))
    lines=$(MALLOC_CHECK_=3 "$bench" $item --rounds 1 --json 2>&1)
    code=$?
    wrong=$(grep -vE '^\{"name": ?"'$item'[^"]*", ?"value": ?[0-9.e+-]+, ?"unit": ?"[^"]+", ?"of": ?"[^"]+"' \
        <<< "$lines" | head -1)
    if [ $code = 0 ] && [ -z "$wrong" ]; then
        echo "ok $count - item $item, $(wc -l <<< "$lines") figures"
    else
        echo "# exit code $code, line: ${wrong:-none}"
        echo "not ok $count - item $item"
        failures=$((failures + 1))
    fi
done
echo "1..$count"
exit $((failures > 0))
