#!/usr/bin/env bash
# What a GPU is for, in order and within a time limit: the target from packs, masks for it, CUDA tests, `bench gpu`.
#
#   bash training/gpu.sh PACKS OUT MINUTES      PACKS: a folder with target.packs and masks.packs (docs/models.md makes them)
#
# Each step's output, result and exit code are in OUT before the next begins, and OUT/steps lists them. The same command goes
# on with what was stopped. ADAPTER, MODEL and PYTHON name others than the shipped adapter, its base and python3.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
packs=$1 out=$2 minutes=$3 failed=0
adapter=${ADAPTER:-decoding/weights/sqlagent-135m} model=${MODEL:-embedded} python=${PYTHON:-python3}
mkdir -p "$out"
begin=()
[ -e "$adapter/masks.safetensors" ] && begin=(--init-masks "$adapter")

part() { awk "BEGIN { print $minutes * $1 }"; }

step() { # NAME COMMAND...: runs it within the time that is left, its stdout in OUT/NAME.json and its stderr here and in OUT/NAME.log
    local name=$1 began=$SECONDS left code
    shift
    left=$(awk "BEGIN { print int($minutes * 60) - $SECONDS }")
    if [ "$left" -gt 0 ]; then
        timeout --kill-after=30 "$left" "$python" "$@" 2>&1 >"$out/$name.json" | tee -a "$out/$name.log" >&2
        code=${PIPESTATUS[0]}
    else
        code="not begun, no time is left"
    fi
    [ "$code" = 0 ] || failed=1
    echo "$name: $code, $((SECONDS - began)) s" | tee -a "$out/steps"
}

step target -m app.train.on_gpu train "$packs/target.packs" --model "$model" --init-adapter "$adapter" \
    --minutes "$(part 0.42)" --out "$out/target" --resume
step trained -m app.train.on_gpu export "$out/target/adapter" --model "$model" --rank 50 --fine 8 --out "$out/trained"
step averaged -m app.train.on_gpu export "$out/target/adapter" --model "$model" --average "$adapter" --rank 50 --fine 8 --out "$out/averaged"
step masks -m app.train.on_gpu train "$packs/masks.packs" --model "$model" --init-adapter "$out/averaged" \
    --minutes "$(part 0.2)" --out "$out/masks" --resume "${begin[@]}"
if "$python" -c "import sys, torch; sys.exit(not torch.cuda.is_available())"; then
    step tests -m pytest -q -p no:cacheprovider tests/kernels/*.py tests/decoding/targets/cuda tests/decoding/heads/test_drafters_on_gpu.py \
        tests/decoding/training/model tests/decoding/training/heads/test_mask_training.py
    step bench -c "import json, sys; from eval.speed.gpu_kernels import chosen_models, require_gpu, run; require_gpu()
print(json.dumps(run(chosen_models('all'), lambda line: print(line, file=sys.stderr, flush=True))))"
else
    echo "tests, bench: not begun, there is no GPU" | tee -a "$out/steps"
    failed=1
fi
exit $failed
