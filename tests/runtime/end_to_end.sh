#!/bin/bash
# tests/runtime/end_to_end.sh - plan and train a tiny model through the commands: the same weights
# to the bit wherever the states live, after a resume, under either storage engine; exit codes.
#
# usage: end_to_end.sh ZINF_PLAN ZINF_RUN CLUSTER.yaml
plan=$1 run=$2 cluster=$3 count=0 failures=0
work=$(mktemp -d "${TMPDIR:-/tmp}/zinf-e2e-XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/disk"

ok() { # ok "sentence" status
    count=$((count + 1))
    if [ "$2" -eq 0 ]; then echo "ok $count - $1"; else
        echo "not ok $count - $1"
        sed 's/^/# /' "$work/err" | tail -5
        failures=1
    fi
}

cat > "$work/model.yaml" <<'YAML'
model: {name: nano, family: gpt2, layers: 3, hidden: 37, heads: 1, vocab: 256, context: 24,
        tied_embeddings: true}
training:
  sequence: 24
  global_batch: 4
  precision: bf16
  optimizer: {type: adamw, lr: 3e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1}
  schedule: {type: cosine, warmup: 5, steps: 12, min_lr: 1e-4}
  clip: 1.0
  seed: 1337
YAML
for i in {1..200}; do echo "line $i of a text that repeats itself, so that there is much to learn"; done \
    > "$work/text"

plan() { # plan NAME KEY=VALUE..
    local name=$1 sets=() s
    shift
    for s in "$@"; do sets+=(--set "$s"); done
    "$plan" "$work/model.yaml" "$cluster" "${sets[@]}" -o "$work/$name" > "$work/out" 2> "$work/err"
}

train() { # train NAME OPTION..
    local name=$1
    shift
    "$run" "$work/$name" --data "$work/text" --nvme "$work/disk" --log "$work/log" "$@" \
        > "$work/out" 2> "$work/err" < /dev/null
}

hash() { grep -o '"params_hash": "[0-9a-f]*"' "$work/log"; }

plan host tier.{param,grad,optimizer,checkpoint}=host
train host --val "$work/text" --val-every 6 --trace "$work/trace"
ok "a plan trains" $?
expected=$(hash)
losses=$(grep -o '"loss": [^,]*' "$work/log")
python3 - "$work/log" "$work/trace" <<'PY' > "$work/err" 2>&1
import json, sys
rows = [json.loads(line) for line in open(sys.argv[1])]
steps, summary = rows[:-1], rows[-1]["summary"]
assert [r["step"] for r in steps] == list(range(1, 13)), steps
assert steps[-1]["loss"] < steps[0]["loss"] - 0.5, (steps[0], steps[-1])
assert all({"loss", "lr", "grad_norm", "grad_norm_clipped", "tokens", "step_s", "tokens_per_s",
            "mfu"} <= r.keys() for r in steps)
assert [r["step"] for r in steps if "val_loss" in r] == [6, 12]
assert all(r["grad_norm_clipped"] <= 1 for r in steps)
assert {"planned", "measured", "peak_rss_bytes", "predicted_step_s", "measured_step_s", "queues",
        "params_hash"} <= summary.keys()
for tier in "device", "nvme":
    assert summary["measured"][tier] == summary["planned"][tier], (tier, summary)
events = json.load(open(sys.argv[2]))["traceEvents"]
assert {e["pid"] for e in events if e["ph"] == "X"} == {1, 2}
n = [sum(e["ph"] == "X" and e["pid"] == p for e in events) for p in (1, 2)]
assert n[0] == n[1] > 50, n
PY
ok "log and trace say what happened" $?

plan nvme tier.{param,grad,optimizer,checkpoint}=nvme prefetch.read=2
train nvme && [ "$(hash)" = "$expected" ] &&
    [ "$(grep -o '"loss": [^,]*' "$work/log")" = "$losses" ]
ok "states on nvme give the same weights and losses to the bit" $?
train nvme --engine threads && [ "$(hash)" = "$expected" ]
ok "so do storage threads" $?

train nvme --steps 5 --save "$work/save" && train host --resume "$work/save" &&
    [ "$(hash)" = "$expected" ]
ok "a run resumed on other tiers is bitwise the run that never stopped" $?
train nvme --steps 7 --save "$work/save" --save-every 3 && train nvme --resume "$work/save" &&
    [ "$(hash)" = "$expected" ] && [ "$(grep -c '"step"' "$work/log")" = 5 ]
ok "the last checkpoint is the last step" $?

"$run" "$work/host" --resume "$work/save" --sample 20 --prompt "line " > "$work/out" 2> "$work/err"
[ $? = 0 ] && grep -qa '^line ' "$work/out"
ok "a sample goes on from its prompt" $?

"$run" "$work/nvme" --data "$work/text" 2> "$work/err"
[ $? = 2 ] && grep -q -- 'pass --nvme' "$work/err"
ok "a missing nvme directory is named" $?
"$run" "$work/host" 2> "$work/err"
[ $? = 2 ] && grep -q -- 'pass --data' "$work/err"
ok "missing data is named" $?
head -c 5000 "$work/host" > "$work/cut"
"$run" "$work/cut" --data "$work/text" 2> "$work/err"
[ $? = 2 ] && grep -q truncated "$work/err"
ok "a truncated plan is refused" $?
rm -f "$work/log"
"$run" "$work/host" --data "$work/text" --log "$work/log" --steps 1000000 --save "$work/killed" \
    > "$work/out" 2> "$work/err" & job=$!
for i in {1..200}; do grep -qs '"step": 3,' "$work/log" && break; sleep 0.05; done
kill -TERM $job
wait $job
[ $? = 0 ] && [ -e "$work/killed/latest" ] && grep -q stopped "$work/err"
ok "a signal ends the run after a step, with a checkpoint" $?
[ -z "$(ls "$work/disk")" ]
ok "nothing is left in the nvme directory" $?
echo "1..$count"
exit $failures
