#!/usr/bin/env bash
# What only a CUDA device can show, in at most 8 minutes: `make gpu`, or with a machine's own Python and without an installation:
#     OUT=runs/gpu PYTHON=python3 bash tests/gpu/run.sh [PART ...]
# SLOW=4 gives each part four times as long. Each part has a limit of its own, and its result is written as it comes: $OUT/PART.txt, and a line in $OUT/results.jsonl.
set -u
cd "$(dirname "$0")/../.." || exit 2
OUT=${OUT:-runs/gpu}
PYTHON=${PYTHON:-python3}
export OUT PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
mkdir -p "$OUT"
: > "$OUT/results.jsonl"
failed=0

part() { # NAME SECONDS COMMAND ...
    local name=$1 limit=$(($2 * ${SLOW:-1})) began=$SECONDS status
    shift 2
    if [ -n "$chosen" ] && [[ " $chosen " != *" $name "* ]]; then return; fi
    timeout --kill-after=5 "$limit" "$@" > "$OUT/$name.txt" 2>&1
    status=$?
    case $status in
        0) result=passed; grep -qE '^([0-9]+ )?skipped' "$OUT/$name.txt" && result=skipped ;;
        5) result=skipped ;; # pytest: no test ran
        124 | 137) result="over $limit s"; failed=1 ;;
        *) result=failed; failed=1 ;;
    esac
    printf '{"part": "%s", "result": "%s", "seconds": %d}\n' "$name" "$result" $((SECONDS - began)) | tee -a "$OUT/results.jsonl"
    tail -n 40 "$OUT/$name.txt"
}

tests() { # the machine may have no plugins of pytest, and warnings of its own
    "$PYTHON" -m pytest -q -x -rs -o addopts= -o filterwarnings=default -p no:cacheprovider --import-mode=importlib -m cuda "$@"
}
export -f tests
export PYTHON
chosen="$*"
parts=$(sed -n 's/^part \([a-z]*\) .*/\1/p' tests/gpu/run.sh | tr '\n' ' ')
for name in $chosen; do
    [[ " $parts" == *" $name "* ]] || { echo "there is no part '$name'; the parts are ${parts// /, }" >&2; exit 2; }
done

part versions 20 "$PYTHON" -m tests.gpu.parts versions
part library 30 "$PYTHON" -m tests.gpu.parts library
part kernels 70 bash -c 'tests tests/statistics/kernels/test_fused.py'
part values 40 "$PYTHON" -m tests.gpu.parts values
part identity 110 "$PYTHON" -m tests.gpu.parts identity
part syncs 30 "$PYTHON" -m tests.gpu.parts syncs
part nan 20 "$PYTHON" -m tests.gpu.parts nan
part overhead 110 "$PYTHON" -m tests.gpu.parts overhead
part callbacks 50 bash -c 'tests tests/callbacks/test_cuda.py tests/callbacks/test_cuda_profiler.py tests/callbacks/test_activation_pruner.py'
exit $failed
