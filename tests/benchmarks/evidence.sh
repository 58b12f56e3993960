#!/usr/bin/env bash
# Real runs behind the numbers of README.md: the demo model on public and on sample requests, and
# damped twins of it at three epsilon. Finished runs are kept, an interrupted one goes on.
# usage: tests/benchmarks/evidence.sh TRACES OUT   (about an hour on two quiet cores)
# TRACES: a trace file with several tasks and context bands; OUT: an existing folder.
set -euo pipefail
traces=$1 out=$2
selfspec=${SELFSPEC:-selfspec}
python=${PYTHON:-python}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

calibrate() { $selfspec calibrate "$@" || [ $? -eq 3 ]; }  # 3: a plan without evidence is a plan

$selfspec demo-model
calibrate -m demo -t "$traces" --limit 200 --max-tokens 48 -o "$out/public"
calibrate -m demo -t sample -c quickstart -o "$out/sample"
mkdir -p "$here/benchmarks/results"
runs=("demo, public=$out/public" "demo, sample=$out/sample")
for epsilon in 0.05 0.01 0.003; do
  twin=$out/twin-$epsilon
  [ -f "$twin/config.json" ] ||
    $python "$here/instruments/damped_twin.py" demo "$twin" --from-layer 15 --epsilon "$epsilon"
  sizes=1
  [ "$epsilon" = 0.01 ] && sizes=1,4,8
  calibrate -m "$twin" -t sample -c quickstart --batch-size "$sizes" -o "$out/run-$epsilon"
  runs+=("twin $epsilon=$out/run-$epsilon")
done
$python "$here/benchmarks/collect_evidence.py" "$here/benchmarks/results/evidence.json" "${runs[@]}"
