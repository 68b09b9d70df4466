#!/usr/bin/env bash
# Tests paths and names of any bytes: in config.ini, after a move, in JSON, and on a terminal.
source "$2/tests/cli/lib/lib.sh"

mkdir project
cd project
make_text text 100
mkdir 'da #ta'
expect_ok "$switchyard" prepare --domain english=text --tokenizer bytes --valid-fraction 0.2 --output 'da #ta/set'
cat >config.ini <<'INI'
[model]
layers = 1
d_model = 16
heads = 2
seq_len = 16
[moe]
experts = 4
d_ff = 16
[train]
steps = 2
global_batch = 2
micro_batch = 1
[data]
path = "da #ta/set"   # blanks, then a comment
[run]
dir = runs/a#1
backend = cpu
log_every = 1
INI

# The paths in the run's config.ini have the same meaning.
expect_ok "$switchyard" train config.ini
expect_file 'runs/a#1/config.ini'
expect_ok "$switchyard" train 'runs/a#1/config.ini' --run.resume=true --train.steps=3
expect_output "resumed from runs/a#1/checkpoints/step-00000002"
expect_ok "$switchyard" train config.ini --run.dir='b "\ #' --data.path="$PWD/da #ta/set"
expect_ok "$switchyard" train 'b "\ #/config.ini' --run.resume=true --train.steps=3
expect_output "(step 2)"

# A relative data.path works if run and data are moved together. If only the run is moved, it finds
# the data at the old location.
evaluates() { expect_ok "$switchyard" evaluate "$1" --backend cpu && expect_ok "$switchyard" generate "$1" --backend cpu --prompt t --tokens 1; }
cd ..
mv project moved
evaluates 'moved/runs/a#1'
(cd 'moved/runs/a#1' && evaluates .)
evaluates 'moved/runs/a#1/checkpoints/step-00000003/'
mv 'moved/runs/a#1' moved/runs/other
evaluates moved/runs/other
mv moved/runs/other alone
mv moved project
evaluates alone
mv project moved
expect_error "give its folder with --data" "$switchyard" evaluate alone --backend cpu
expect_ok "$switchyard" generate alone --backend cpu --prompt t --tokens 1  # has its tokenizer
expect_ok "$switchyard" evaluate alone --backend cpu --data 'moved/da #ta/set'
expect_error "data.path = da #ta/set is no data set" "$switchyard" train alone/config.ini --run.dir=alone --run.resume=true
# An absolute data.path is used as it is, also after the run has moved.
cp -r moved/. project
evaluates 'moved/b "\ #'
rm -r project
expect_error "give its folder with --data" "$switchyard" evaluate 'moved/b "\ #' --backend cpu
# Data in the folder of the configuration file.
mkdir beside && mv 'moved/da #ta/set' beside/set
sed 's/^path = .*/path = set/; s/^dir = .*/dir = ran/' moved/config.ini >beside/config.ini
expect_ok "$switchyard" train beside/config.ini
expect_ok "$switchyard" train ran/config.ini --run.resume=true --train.steps=3

# Bytes that are not UTF-8.
bytes=$'by\xfftes'
expect_ok "$switchyard" train beside/config.ini --run.dir="$bytes"
for command in evaluate inspect experts; do
  expect_ok "$switchyard" $command "$bytes" --json
  expect_output '{'
done
expect_ok "$switchyard" inspect "$bytes" --verify --json
expect_ok "$switchyard" diff "$bytes" "$bytes" --json
expect_ok "$switchyard" prepare --domain english=moved/text --output "$bytes/data" --json
expect_ok "$switchyard" inspect "$bytes/data" --json

# Control characters in names from files, in the configuration and in a prompt do not reach a
# terminal.
escape=$'\x1b'
sed -i 's/"name": "english"/"name": "\\u001b]0;owned\\u0007english"/' "$bytes/evaluation.json"
expect_ok "$switchyard" experts "$bytes"
expect_output "]0;owned"
[[ $out != *"$escape"* ]] || die "an escape of evaluation.json was printed"
expect_ok "$switchyard" generate "$bytes" --backend cpu --tokens 3 --prompt "${escape}[31mred"
[[ $out == "${escape}[31mred"* ]] || die "a pipe does not get what was generated"
call script --version
if [[ $code -eq 0 ]]; then
  printf '%q ' "$switchyard" generate "$bytes" --backend cpu --tokens 200 --temperature 9 --prompt "${escape}[31mred" >command.txt
  expect_ok script -qec "bash command.txt" /dev/null
  expect_output "␛[31mred"
  [[ $out != *"$escape"* ]] || die "an escape went to the terminal"
else
  echo "no script(1), so no terminal: the test of what is shown on one is left out"
fi
