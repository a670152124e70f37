#!/bin/bash
# tests/sanitize/bad_inputs.sh - both commands on good and bad inputs, every way out that a user
# can reach without a debugger: the exit code is the one promised, memory is used as it should be
# and all of it is given back.
#
# usage: bad_inputs.sh ZINF_PLAN ZINF_RUN CLUSTER.yaml [WRAPPER..]
#
# Give commands built with ASan, or others and as wrapper "valgrind": then each runs under it.
plan=$(realpath "$1") run=$(realpath "$2") cluster=$(realpath "$3") count=0 failures=0
shift 3
wrapper=("$@")
if [ "${1-}" = valgrind ]; then
    if ! command -v valgrind > /dev/null; then
        echo "1..0 # SKIP valgrind is not installed"
        exit 0
    fi
    # no AVX-512 in valgrind 3.19
    export ZINF_CPU_LEVEL=ref
    wrapper=(valgrind -q --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect
             --errors-for-leak-kinds=definite,indirect --child-silent-after-fork=yes)
fi
export ASAN_OPTIONS=exitcode=99 UBSAN_OPTIONS=exitcode=99 LSAN_OPTIONS=exitcode=99
export OMP_NUM_THREADS=1
export OMP_WAIT_POLICY=passive # else zinf-run starts itself again, where valgrind does not follow
work=$(mktemp -d "${TMPDIR:-/tmp}/zinf-bad-XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
mkdir disk

expect() { # expect STATUS "sentence" COMMAND..
    local want=$1 sentence=$2 got
    shift 2
    count=$((count + 1))
    "${wrapper[@]}" "$@" > out 2> err < /dev/null
    got=$?
    if [ $got = "$want" ] && { [ $got = 0 ] || [ -s err ]; } &&
        ! grep -qE 'Sanitizer|runtime error|^==[0-9]+==' err; then
        echo "ok $count - $sentence"
    else
        echo "not ok $count - $sentence"
        echo "# exit code $got, expected $want"
        sed 's/^/# /' err | head -30
        failures=1
    fi
}

cat > model.yaml <<'YAML'
model: {name: nano, family: gpt2, layers: 1, hidden: 8, heads: 1, vocab: 256, context: 8}
training: {sequence: 8, global_batch: 2, precision: bf16, schedule: {steps: 2}}
YAML
sed 's/layers/lawyers/' model.yaml > typo.yaml
sed 's/layers: 1/layers: -1/' model.yaml > negative.yaml
sed 's/hidden: 8/hidden: 65536/; s/vocab: 256/vocab: 1000000/' model.yaml > large.yaml
head -c 60 model.yaml > cut.yaml
: > empty
printf 'a: [b, {c: "\\x"' > broken.yaml
head -c 400 /dev/zero | tr '\0' 'x' > text
head -c 401 text > odd.bin
printf '\377\377%.0s' {1..100} > range.bin
printf '\300\300\066\001\001\0\0\0' > llmc.bin
nvme=(--set threads=1 --set tier.param=nvme --set tier.grad=nvme --set tier.optimizer=nvme)

# ---- zinf-plan ----
expect 0 "help is printed" "$plan" --help
expect 0 "a plan is made" "$plan" model.yaml "$cluster" --set threads=1 -o plan
expect 0 "a plan with storage is made and explained" \
    "$plan" model.yaml "$cluster" "${nvme[@]}" -o nvme --explain --json --top 3 --trace trace
expect 2 "no argument" "$plan"
expect 2 "an unknown option" "$plan" --explian
expect 2 "no cluster" "$plan" model.yaml
expect 2 "a model that is not there" "$plan" none.yaml "$cluster"
expect 2 "a model that is a directory" "$plan" disk "$cluster"
expect 2 "an empty model" "$plan" empty "$cluster"
expect 2 "broken YAML" "$plan" broken.yaml "$cluster"
expect 2 "a model cut short" "$plan" cut.yaml "$cluster"
expect 2 "an unknown key" "$plan" typo.yaml "$cluster"
expect 2 "a negative number" "$plan" negative.yaml "$cluster"
expect 2 "a cluster that is a model" "$plan" model.yaml model.yaml
expect 2 "a setting without value" "$plan" model.yaml "$cluster" --set tiles
expect 2 "an unknown setting" "$plan" model.yaml "$cluster" --set tilse=3
expect 2 "a setting out of range" "$plan" model.yaml "$cluster" --set tiles=99999999999999999999
expect 2 "a setting that contradicts the model" "$plan" model.yaml "$cluster" --set micro_batch=3
expect 3 "a model that does not fit" "$plan" large.yaml "$cluster" --set tiles=1 --json
expect 2 "an output that cannot be written" "$plan" model.yaml "$cluster" -o none/plan
head -c 5000 plan > cut
{ head -c 3000 plan; printf '\377\376'; tail -c +3003 plan; } > flipped
for way in --check --show --simulate; do
    expect 0 "$way of a plan" "$plan" $way nvme
    expect 2 "$way of a plan cut short" "$plan" $way cut
    expect 2 "$way of a plan with other bytes" "$plan" $way flipped
done
expect 2 "--check of an empty plan" "$plan" --check empty
expect 2 "--check of no plan" "$plan" --check model.yaml

# ---- zinf-run ----
expect 0 "help of the run is printed" "$run" --help
expect 0 "a run saves" "$run" plan --data text --steps 1 --save save --log log --trace trace
expect 0 "a run resumes on storage" "$run" nvme --data text --resume save --nvme disk --val text
expect 0 "a run samples" "$run" plan --resume save --sample 3 --prompt ab
expect 2 "no plan" "$run"
expect 2 "a plan that is not there" "$run" none --data text
expect 2 "a plan that is YAML" "$run" model.yaml --data text
expect 2 "a plan cut short" "$run" cut --data text
expect 2 "no data" "$run" plan
expect 2 "data that is not there" "$run" plan --data none
expect 2 "empty data" "$run" plan --data empty
expect 2 "data of odd size" "$run" plan --data odd.bin
expect 2 "tokens beyond the vocabulary" "$run" plan --data range.bin
expect 2 "a token file cut short" "$run" plan --data llmc.bin
expect 2 "validation data that is not there" "$run" plan --data text --val none
expect 2 "no directory of the nvme tier" "$run" nvme --data text
expect 2 "a directory of the nvme tier that is a file" "$run" nvme --data text --nvme text
expect 2 "steps that are no number" "$run" plan --data text --steps many
expect 2 "a checkpoint that is not there" "$run" plan --data text --resume none
file=$(echo save/step-*/m.safetensors)
{ head -c 2000 "$file"; printf X; tail -c +2002 "$file"; } > damaged
cp -r save save2 && cp damaged "save2/${file#save/}"
expect 2 "a checkpoint with another byte" "$run" plan --data text --resume save2
truncate -s 1000 "save2/${file#save/}"
expect 2 "a checkpoint cut short" "$run" plan --data text --resume save2
sed -i 's/"vocab": 256/"vocab": 512/' save2/step-*/manifest.json
expect 2 "a manifest that was edited" "$run" plan --data text --resume save2
rm "save2/${file#save/}"
expect 2 "a checkpoint with a file missing" "$run" plan --data text --resume save2

# ---- a Hugging Face directory, made by an export ----
expect 0 "an export" "$run" plan --data text --steps 1 --export hf
expect 0 "a plan of the exported model" "$plan" hf "$cluster" --set threads=1 --set model.name=nano \
    --set training.sequence=8 --set training.global_batch=2 -o hfplan
expect 0 "a run from it, exported in shards and bf16" "$run" hfplan --init hf --data text --steps 1 \
    --eval text --export hf2 --export-dtype bf16 --export-shard 500
expect 0 "an evaluation from shards" "$run" hfplan --init hf2 --eval text
expect 0 "an evaluation of a checkpoint" "$run" plan --resume save --eval text
expect 2 "an export onto a directory that is there" "$run" plan --resume save --export hf
expect 2 "an export onto a file" "$run" plan --resume save --export text
expect 2 "--init of a directory that is not there" "$run" hfplan --init none --eval text
expect 2 "--init of a checkpoint" "$run" hfplan --init save --eval text
expect 2 "an evaluation of no file" "$run" hfplan --init hf --eval none
cp -r hf bad && echo '{"model_type": "gpt2",' > bad/config.json
expect 2 "a plan of a broken config.json" "$plan" bad "$cluster"
expect 2 "--init of a broken config.json" "$run" hfplan --init bad --eval text
sed 's/"n_layer": *1/"n_layer": 2/' hf/config.json > bad/config.json
expect 2 "--init of another model" "$run" hfplan --init bad --eval text
cp hf/config.json bad && truncate -s 9000 bad/model.safetensors
expect 2 "--init of weights cut short" "$run" hfplan --init bad --eval text
cp -r hf2 bad2 && rm bad2/model-00001-*
expect 2 "--init without a shard" "$run" hfplan --init bad2 --eval text
echo '{"weight_map": 7}' > bad2/model.safetensors.index.json
expect 2 "--init with a broken index" "$run" hfplan --init bad2 --eval text
expect 2 "a log that cannot be written" "$run" plan --data text --log none/log
echo "1..$count"
exit $failures
