#!/bin/bash
# tests/tools/test_options.sh - the scripts of tools/ refuse wrong options before they do anything.
# $1 is the folder of the tools.
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
check "tools/finetune names an unknown option" 2 'unknown option "--stepz"' \
    "$tools/finetune" --stepz 3
check "tools/finetune has help" 0 '--model HF_DIR' "$tools/finetune" --help
check "tools/finetune refuses zero steps" 2 '--steps "0"' "$tools/finetune" --steps 0
check "tools/finetune refuses a model that is not there" 2 '--model "/nonexistent"' \
    "$tools/finetune" --model /nonexistent
check "tools/tokenize has help" 0 '--separator TOKEN' "$tools/tokenize" --help
check "tools/tokenize needs arguments" 2 'usage:' "$tools/tokenize"
# a virtual environment whose pip cannot install: no network
work=$(mktemp -d "${TMPDIR:-/tmp}/zinf-options-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
printf '#!/bin/sh\nexit 1\n' > "$work/bin/python"
chmod +x "$work/bin/python"
check "tools/tokenize without network says so" 4 'it needs the network, once' \
    env ZINF_VENV="$work" "$tools/tokenize" tokenizer.json text -o out.bin
# the folder of --work is the tool's own, and holds no input
mkdir -p "$work/mine/nvme" "$work/marked/deep"
echo mine > "$work/mine/train.txt"
echo a text > "$work/text"
touch "$work/marked/.zinf-quickstart" "$work/marked/.zinf-finetune"
ln "$work/text" "$work/marked/deep/other"
mkdir "$work/marked/tuned"
for tool in quickstart finetune; do # should it not be refused, it is stopped
    check "tools/$tool leaves another's directory alone" 2 'is not empty and was not made by' \
        timeout 60 "$tools/$tool" --work "$work/mine"
    check "tools/$tool refuses a file as a directory" 2 'is no directory' \
        timeout 60 "$tools/$tool" --work "$work/text"
    check "tools/$tool refuses a text that is a link in --work" 2 'is also in --work' \
        timeout 60 "$tools/$tool" --work "$work/marked" --text "$work/text"
    check "tools/$tool refuses a text in --work" 2 'lies in --work' \
        timeout 60 "$tools/$tool" --work "$work/marked" --text "$work/marked/deep/other"
done
check "tools/finetune refuses a model in --work" 2 'lies in --work' \
    timeout 60 "$tools/finetune" --work "$work/marked" --model "$work/marked/tuned"
check "tools/finetune refuses a model that --work lies in" 2 'is not empty' \
    timeout 60 "$tools/finetune" --work "$work/mine" --model "$work/mine"
check "nothing of it was written" 0 'mine' \
    bash -c 'cat "$1/mine/train.txt" && [ "$(find "$1/mine" "$1/marked" | wc -l)" = 9 ]' - "$work"
check "tools/smollm2.py replaces no directory" 1 'is there already' \
    python3 "$tools/smollm2.py" "$work/mine"
# a package that is not there is missed whether its version is stated or not
mkdir -p "$work/real/bin"
printf '#!/bin/sh\nexec python3 "$@"\n' > "$work/real/bin/python"
chmod +x "$work/real/bin/python"
for package in zinf-no-such-package zinf-no-such-package==1.0; do
    check "$package is missed" 4 "pip could not install $package" \
        env ZINF_VENV="$work/real" PIP_NO_INDEX=1 PIP_FIND_LINKS= \
        bash -c '. "$1/packages"; . "$1/venv"; zinf_need_venv "$2"' bash "$tools" "$package"
done

echo "1..$count"
exit $((failures > 0))
