#!/usr/bin/env bash
# Tests switchyard generate: several prompts, sampling, stop strings, and equal text on all layouts.
source "$2/tests/cli/lib/lib.sh"

make_data 200 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 30
global_batch = 8
micro_batch = 4
lr = 1e-2
warmup = 2
[run]
backend = cpu
INI
expect_ok "$switchyard" train config.ini --run.dir=run --quiet --model.window=6 --moe.shared_experts=1
generate() { expect_ok "$switchyard" generate run --backend cpu "$@"; }

# Greedy text continues beyond the 16 positions of the training. It is the same on any layout, also
# with more ranks than prompts.
generate --prompt "token 7 is" --tokens 40 --temperature 0
alone=$out
[[ $alone == "token 7 is"* && ${#alone} -ge 50 ]] || die "the text is too short"
printf 'token 7 is\n\n \t\nto\ntoken 19 is sent to\r\n' >prompts
generate --prompts prompts --tokens 40 --temperature 0
batch=$out
[[ $batch == "--- 1 of 3 ---"$'\n'"$alone"$'\n--- 2 of 3 ---\nto'* ]] || die "a text of the batch is not as it is alone"
for layout in "2" "2 --parallel.tp=2" "3 --parallel.tp=1" "4 --parallel.tp=2 --parallel.ep=4" "4 --parallel.ep=4" \
  "4 --parallel.tp=4 --parallel.etp=2"; do
  # shellcheck disable=SC2086
  expect_ok ranks ${layout%% *} generate run --backend cpu --prompt "token 7 is" --tokens 40 --temperature 0 ${layout#[0-9]}
  [[ $out == "$alone" ]] || die "another text on $layout"
  # shellcheck disable=SC2086
  expect_ok ranks ${layout%% *} generate run --backend cpu --prompts prompts --tokens 40 --temperature 0 ${layout#[0-9]}
  [[ $out == "$batch" ]] || die "another batch on $layout"
done

# A drawn token depends only on the seed, the number of the prompt and the position.
generate --prompts prompts --tokens 20 --seed 4 --json
drawn=$out
[[ $(grep -c '"finish": "' .out) -eq 3 ]] || die "not three texts"
expect_ok ranks 2 generate run --backend cpu --prompts prompts --tokens 20 --seed 4 --batch 1 --json
[[ $out == "$drawn" ]] || die "another draw on two ranks"
expect_ok ranks 2 generate run --backend cpu --prompts prompts --tokens 20 --seed 4 --batch 9223372036854775807 --json
[[ $out == "$drawn" ]] || die "another text with a very large batch"
generate --prompts prompts --tokens 20 --seed 5 --json
[[ $out != "$drawn" ]] || die "another seed changes nothing"

# Each of these limits leaves only the most likely token.
for rule in "--top-k 1" "--top-p 1e-9" "--min-p 1"; do
  # shellcheck disable=SC2086
  generate --prompt "token 7 is" --tokens 40 --temperature 2 $rule
  [[ $out == "$alone" ]] || die "$rule leaves more than the most likely token"
done
generate --prompt "token 7 is" --tokens 40 --temperature 0 --repetition-penalty 5
[[ $out != "$alone" ]] || die "a penalty changes nothing"

# A text ends before the first stop string, which has several tokens here.
added=${alone#token 7 is}
stop=${added:5:4}
before=${added%%"$stop"*}
generate --prompt "token 7 is" --tokens 40 --temperature 0 --stop "$stop" --stop nowhere
[[ $out == "token 7 is$before" ]] || die "not ended before '$stop'"
generate --prompt "token 7 is" --tokens 40 --temperature 0 --stop "$stop" --json
grep -q '"finish": "stop"' .out || die "the end is not reported"
# The JSON of one prompt is an array of one element.
[[ $(head -c 1 .out) == "[" && $(tail -c 2 .out) == "]" && $(head -c 1 <<<"$drawn") == "[" ]] || die "not an array"
expect_ok ranks 2 generate run --backend cpu --prompt "token 7 is" --tokens 40 --temperature 0 --stop "$stop"
[[ $out == "token 7 is$before" ]] || die "not ended before '$stop' on two ranks"

bad() {
  expect_error "$1" "$switchyard" generate run --backend cpu "${@:2}"
  expect_error "$1" ranks 2 generate run --backend cpu "${@:2}"
}
bad "no prompt"
bad "min-p" --prompt x --min-p 2
bad "repetition-penalty" --prompt x --repetition-penalty 0
bad "--stop" --prompt x --stop ""
bad "--batch" --prompt x --batch 0
bad "--tokens must be from 0 to 1073741824" --prompt x --tokens 9223372036854775807
bad "nothing-here" --prompts nothing-here
bad "at least 1" --prompt x --parallel.tp=0
# The batches of the training do not matter.
expect_ok "$switchyard" train config.ini --run.dir=ramped --quiet --train.steps=1 --train.batch_ramp=2:8
expect_ok ranks 3 generate ramped --backend cpu --prompt x --tokens 2 --parallel.tp=1
expect_error "these layouts work" ranks 2 generate run --backend cpu --prompt x --parallel.tp=3
