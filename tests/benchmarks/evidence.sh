#!/usr/bin/env bash
# Predicted against measured on the demo model and on damped twins at three epsilon.
# usage: tests/benchmarks/evidence.sh TRACES OUT   (about an hour on two quiet cores)
# TRACES: a trace file with several tasks and context bands; OUT: an existing folder.
set -euo pipefail
traces=$1 out=$2
selfspec=${SELFSPEC:-selfspec}
python=${PYTHON:-python}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

$selfspec demo-model
$selfspec calibrate -m demo -t "$traces" --limit 96 --max-tokens 48 -o "$out/demo"
for epsilon in 0.05 0.03 0.01; do
  twin=$out/twin-$epsilon
  [ -f "$twin/config.json" ] ||
    $python "$here/instruments/damped_twin.py" demo "$twin" --from-layer 15 --epsilon "$epsilon"
  $selfspec calibrate -m "$twin" -t sample --limit 24 --max-tokens 48 -o "$out/run-$epsilon"
done
$python "$here/benchmarks/evidence_table.py" "$out/demo" "$out"/run-*
