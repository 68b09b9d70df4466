#!/usr/bin/env bash
# Takes a fresh Debian 12 to a trained mixture-of-experts model and a report on its experts. It runs
# as root or with sudo and takes less than 10 minutes on 2 cores.
# A second run reuses existing packages, build, corpus, data set and checkpoints.
set -euo pipefail
if (($# > 0)); then
  sed -nE '2,/^[^#]/s/^# ?//p' "${BASH_SOURCE[0]}"
  [[ $1 == --help ]] && exit 0
  echo "launch/quickstart.sh takes no arguments" >&2
  exit 2
fi
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.."
run=runs/quickstart

heading() { printf '\n[%d:%02d] %s\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; }

heading "Packages"
launch/install-deps.sh

heading "Build (Release, in build/)"
cmake -S . -B build -DCMAKE_BUILD_TYPE=Release --log-level=NOTICE
cmake --build build --target switchyard --parallel "$(nproc)"

heading "Corpus: English scripture, German and Japanese manual pages, C++ headers"
launch/corpus.sh data/corpus

heading "Data set, in bytes"
if [[ ! -f data/quickstart/dataset.ini ]]; then
  domains=()
  for domain in scripture german japanese cpp; do domains+=(--domain "$domain=data/corpus/$domain"); done
  build/switchyard prepare "${domains[@]}" --tokenizer bytes --valid-fraction 0.05 --output data/quickstart
fi

heading "Training on 4 ranks: experts over 2, data over 2"
launch/mpirun.sh 4 build/switchyard train configs/quickstart.ini --run.dir="$run" --run.resume=true

heading "Evaluation, per domain"
build/switchyard evaluate "$run" --data data/quickstart

heading "What the experts did"
build/switchyard experts "$run" --html "$run/report.html"

heading "A sample"
build/switchyard generate "$run" --prompt "And the LORD said unto Moses,"

heading "Done. What to try next:"
cat <<END
  the report, in a browser                  $run/report.html
  other samples                             build/switchyard generate $run --prompt "BESCHREIBUNG"
  what a checkpoint holds; is it intact     build/switchyard inspect $run --verify
  another layout, the same losses           launch/mpirun.sh 4 build/switchyard train configs/quickstart.ini \\
                                              --run.dir=runs/ep4 --parallel.ep=4
  your own text, then --data.path=data/mine build/switchyard prepare --domain mine=FOLDER --output data/mine
  every key of configs/quickstart.ini       build/switchyard help config
END
