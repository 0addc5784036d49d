#!/usr/bin/env bash
# Every device test and GPU benchmark on one GPU, in less than 8 minutes; ends with one table of figures and targets.
#     bash benchmarks/gpu_report.sh [--quick] [FOLDER]
# --quick runs small sizes on whatever device there is, to check the script itself. Numbers go to FOLDER as JSON.
set -uo pipefail
cd "$(dirname "$0")/.."

quick=""
if [ "${1:-}" = "--quick" ]; then
    quick="--quick"
    shift
fi
folder=${1:-$(mktemp -d)}
mkdir -p "$folder"
python=${PYTHON:-python}
device=$("$python" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")') || exit 1
if [ "$device" = cpu ] && [ -z "$quick" ]; then
    echo "gpu_report.sh: there is no CUDA device" >&2
    exit 1
fi
options="--device $device"
size="--settings 32,64,64,131072 --repeats 7"
if [ -n "$quick" ]; then
    options="$options --quick --threads 1"
    size=""
fi
export PYTHONPATH=".${PYTHONPATH:+:$PYTHONPATH}"

step() { # what it is, seconds it may take, command
    echo
    echo "== $1"
    timeout "$2" "${@:3}" || echo "== $1: failed (exit status $?)"
}

step "device tests" 150 "$python" -m pytest tests/device -q --junitxml "$folder/tests.xml"
# shellcheck disable=SC2086
{
    step "step, float32" 90 "$python" benchmarks/step_time.py $options $size --json "$folder/step.json"
    step "step, TF32 allowed" 60 "$python" benchmarks/step_time.py $options $size --precision tf32 \
        --json "$folder/step_tf32.json"
    step "projection" 60 "$python" benchmarks/projection.py $options --json "$folder/projection.json"
    step "epochs" 110 "$python" benchmarks/epochs.py $options --json "$folder/epochs.json"
}
echo
"$python" benchmarks/gpu_table.py "$folder"
