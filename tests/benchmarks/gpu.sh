#!/usr/bin/env bash
# Everything that needs a GPU, in at most 8 minutes: costs with CUDA graphs and eagerly at the shape
# of Llama-3-8B, exactness in float32, then the tests marked `device`. Nothing is downloaded.
# usage: tests/benchmarks/gpu.sh [OUT.json] [--tiny]   (--tiny: seconds on a CPU, to try it out)
set -euo pipefail
python=${PYTHON:-python}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
out=$here/results/gpu.json options=()
for argument in "$@"; do
  case $argument in
    --*) options+=("$argument") ;;
    *) out=$argument ;;
  esac
done
mkdir -p "$(dirname "$out")"
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
timeout 400 "$python" "$here/gpu_costs.py" --json "$out" --minutes 6 ${options[@]+"${options[@]}"}
if [ ${#options[@]} -eq 0 ]; then
  timeout 80 "$python" -m pytest -q -m device -p no:cacheprovider \
    tests/engine/test_graphs.py tests/engine/test_dtypes.py
fi
