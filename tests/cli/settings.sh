#!/usr/bin/env bash
# Tests configurations and options: several errors at once, warnings, changes on a resume, dry and
# quiet runs, and completion.
source "$2/tests/cli/lib/lib.sh"

make_data 100 --quiet
[[ -z $err ]] || die "progress in spite of --quiet"
small_config <<'INI'
[train]
steps = 6
global_batch = 6
micro_batch = 3
warmup = 2
[run]
backend = cpu
checkpoint_every = 3
INI
files() { find . -not -name '.out' -not -name '.err' -type f | sort | xargs sha256sum; }
says() { [[ $err == *"$1"* ]] || die "no '$1' on stderr"; }
says_not() { [[ $err != *"$1"* ]] || die "'$1' on stderr"; }
# The small data set is read many times, which is a warning.
no_other_warning() { [[ $(grep -v "warning: domain english will be read" .err) != *warning* ]] || die "another warning: $err"; }

# ---- rotary tables that depend on the length: training prints which one it uses ----
expect_ok "$switchyard" train config.ini --run.dir=x --dry-run --model.rope_scaling=dynamic --model.rope_original_length=8
[[ $out == *"rope      dynamic for a length of 16, model.seq_len; evaluation"* ]] || die "no table of dynamic"
longrope=(--model.rope_scaling=longrope "--model.rope_short_factors=1,1,2,2" "--model.rope_long_factors=2,3,4,5")
expect_ok "$switchyard" train config.ini --run.dir=x --dry-run "${longrope[@]}" --model.rope_original_length=8
[[ $out == *"longrope with model.rope_long_factors, since model.seq_len = 16 is above"* ]] || die "not the long factors"
expect_ok "$switchyard" train config.ini --run.dir=x --dry-run "${longrope[@]}" --model.rope_original_length=16
[[ $out == *"longrope with model.rope_short_factors, since model.seq_len = 16 is at most"* ]] || die "not the short factors"
expect_ok "$switchyard" train config.ini --run.dir=x --dry-run
[[ $out != *rope* ]] || die "a rope that does not depend on the length"

# ---- all errors in one message with their lines, on any number of ranks ----
printf '\xef\xbb\xbf[model]\r\nlayer = 3\r\nheads = -4\r\n[train]\r\nlr = fast\r\nsteps\r\n' >wrong.ini
for n in 1 3; do
  expect_error "wrong.ini: 5 errors: correct each" ranks "$n" train wrong.ini --moe.top_k=0 --data.path=data --run.dir=x
  [[ $(grep -A 9 '^switchyard: ' .err | head -6) == "switchyard: wrong.ini: 5 errors: correct each
  wrong.ini:2: unknown key 'model.layer': did you mean 'model.layers'?
  wrong.ini:3: model.heads = -4: must be from 1 to 65536
  wrong.ini:5: train.lr = 'fast': expected a number
  wrong.ini:6: 'steps': lines are [section], key = value or # comment
  command line: moe.top_k = 0: must be from 1 to 1048576" ]] || die "not all that is wrong"
done
# A wrong data path is listed with wrong keys.
expect_error "command line: unknown key 'moe.topk'" "$switchyard" train config.ini --moe.topk=1 --run.dtype=fp8 --data.path=nowhere
says "config.ini: 4 errors: correct each"
says "run.dtype = 'fp8': expected f32 or bf16"
says "data.path = nowhere is no data set"
says "run.dir is not set"
expect_error "config.ini: 2 errors" ranks 2 train config.ini --run.dir=x --data.path=nowhere --parallel.tp=3
says "2 ranks are not divisible by parallel.tp = 3"
# Wrong options are listed, too, and a wrong layout if all values that it depends on are valid. An
# argument of an unknown option does not count as that of another option.
errors_are() {  # LINE...; compares with the list on stderr, in any order
  diff <(printf '  %s\n' "$@" | sort) <(grep -A $# '^switchyard: ' .err | sed 1d | sort) >&2 || die "not these errors"
}
path_help="set it to a folder that \`switchyard prepare\` wrote (a relative path begins in the working directory, or beside the configuration that sets it)"
expect_error "train: 6 errors: correct each" ranks 2 train config.ini --bogus 3 --dyr-run --run.dir=x --parallel.tp=3 --train.lr=fast \
  --run.colour=red --data.path=nowhere
errors_are "train: unknown option --bogus: $("$switchyard" help train | head -1)" \
  "train: unknown option --dyr-run: did you mean --dry-run?" \
  "command line: unknown key 'run.colour': \`switchyard help config\` lists them" \
  "command line: train.lr = 'fast': expected a number" "data.path = nowhere is no data set (it has no dataset.ini): $path_help" \
  "2 ranks are not divisible by parallel.tp = 3: on 2 ranks these layouts work: tp 2 ep 1 etp 1 (add --parallel.tp=2), tp 1 ep 1 etp 1 (add --parallel.tp=1), tp 2 ep 1 etp 2 (add --parallel.tp=2 --parallel.etp=2), tp 2 ep 2 etp 1 (add --parallel.tp=2 --parallel.ep=2), tp 1 ep 1 etp 2 (add --parallel.tp=1 --parallel.etp=2) and 1 more"
# If a value that the layout depends on is wrong, or may be wrong, the layout is not checked.
for setting in --model.heads=0 --model.head=2 --moe.expert=3 --train.micro_batch=x; do
  call "$switchyard" train config.ini --dry-run --ranks 2 --run.dir=x --parallel.tp=3 $setting
  [[ $code -eq 2 && $(wc -l <.err) -eq 1 && $err != *tp* ]] || die "more than one error of $setting"
done
# The settings are checked even if the file is missing.
expect_error "2 errors" "$switchyard" train nowhere.ini --moe.topk=1 --run.dir=x --attention.local.window=2
says "cannot read the configuration nowhere.ini"
says "did you mean 'moe.top_k'?"
# The keys that a sweep varies are checked even if the data set is missing.
expect_error "sweep: 5 errors" "$switchyard" sweep "$root/configs/quickstart.ini" --vary moe.topk=1,2 --vary moe --seeds x --output x
says "unknown key 'moe.topk': did you mean 'moe.top_k'?"
says "data/quickstart is no data set"
says "--vary moe: give KEY=VALUE"
says "--seeds x: 'x' is no number"
says "1 rank is not divisible by parallel.ep * parallel.etp = 2 * 1"
expect_error "4 errors" "$switchyard" sweep config.ini --vary model.heads=3,4 --vary train.lr=x,1 --ranks 4 --parallel.tp=3 --output x
says "train.lr = 'x': expected a number"
says "model.d_model = 32 is not a multiple of model.heads = 3"
says "4 ranks are not divisible by parallel.tp = 3"
expect_error "plan: 6 errors" "$switchyard" plan config.ini --ranks 2,x --layouts ep2,foo --top x --machine nowhere --moe.topk=2 --json=3
expect_error "plan: 4 errors" "$switchyard" plan config.ini --ranks 2,3 --layouts ep2,ep3 --bogus
says "3 ranks are not divisible by parallel.ep * parallel.etp = 2 * 1"
says "2 ranks are not divisible by parallel.ep * parallel.etp = 3 * 1"
expect_error "scale: 6 errors" "$switchyard" scale config.ini --ranks 2 --layouts ep3 --stepz 3 --warm-up -1 --load x --data.path=nowhere
says "nowhere is no data set"
says "2 ranks are not divisible by parallel.ep"
expect_error "prepare: 7 errors" "$switchyard" prepare --domain a=absent --domain b=text --domain c --tokenizer byte --valid-fraction 2 \
  --output text --overwrit --seed x
says "did you mean --overwrite?"
says "absent: No such file or directory: check the path"
says "choose bytes, spm:FILE"
says "write elsewhere"
expect_error "evaluate: 4 errors" "$switchyard" evaluate nowhere --data text --batch 0 --quite
says "nowhere is no folder"
says "text is not a data set"
expect_error "generate: 3 errors" "$switchyard" generate nowhere --top-p 2 --tokens x
expect_no_file x
# A binary file is one error, and so is any other text.
expect_error "data/english.train.bin:1: a byte 0x00, which no text has" "$switchyard" train data/english.train.bin
[[ $(wc -l <.err) -eq 1 ]] || die "more than one line"
# A name that resembles no other gets no suggestion.
expect_error "unknown key 'model.colour': \`switchyard help config\` lists them" "$switchyard" train config.ini --run.dir=x --model.colour=red
expect_error "unknown option --json: usage: " "$switchyard" import --json a b
# ~/ means the home folder, since shells do not expand it in --key=~/x.
mkdir home
HOME=$work/home expect_ok "$switchyard" train config.ini --run.dir='~/run' --train.steps=2 --quiet
expect_file home/run/config.ini
expect_no_file '~'
expect_error "run.dir = ~nobody/run: only ~/ of a user with \$HOME is expanded" "$switchyard" train config.ini --run.dir='~nobody/run'

# A byte order mark and carriage returns are allowed.
{ printf '\xef\xbb\xbf'; sed 's/$/\r/' config.ini; } >windows.ini
expect_ok "$switchyard" train windows.ini --run.dir=windows --train.steps=1

# ---- keys as options, and wrong options ----
expect_ok "$switchyard" train config.ini --run.dir blank --train.steps 2
expect_output "step 2/2"
expect_error "did you mean --train.steps?" "$switchyard" train config.ini --steps 3
expect_error "--train.steps has no value" "$switchyard" train config.ini --run.dir=x --train.steps
expect_error "--train.steps has no value" "$switchyard" train config.ini --train.steps --run.dir=x
expect_error "did you mean --dry-run?" "$switchyard" train config.ini --dryrun
expect_error "config is missing" "$switchyard" train --run.dir=x

# ---- a dry run prints the plan and writes nothing ----
before=$(files)
expect_ok "$switchyard" train config.ini --run.dir=dry --dry-run
expect_output "layout    dp 1 tp 1 ep 1 etp 1 edp 1 (1 rank)"
expect_output "memory "
expect_output "a step takes 6"
expect_ok ranks 2 train config.ini --run.dir=dry --parallel.ep=2 --dry-run
expect_output "layout    dp 2 tp 1 ep 2 etp 1 edp 1 (2 ranks)"
expect_ok "$switchyard" train config.ini --run.dir=dry --dry-run --ranks 6 --train.micro_batch=1
expect_output "(6 ranks)"
expect_error "on 4 ranks" "$switchyard" train config.ini --run.dir=dry --dry-run --ranks 4
expect_error "GB on each rank" "$switchyard" train config.ini --run.dir=dry --dry-run --model.d_model=65536 --model.head_dim=16384
expect_error "nowhere" ranks 2 train config.ini --run.dir=dry --dry-run --data.path=nowhere
expect_error "--dry-run" "$switchyard" train config.ini --run.dir=dry --ranks 4
expect_no_file dry
[[ $before == "$(files)" ]] || die "a dry run wrote something"

# Impossible sizes are refused before memory is allocated: the address space is limited to 2 GB
# here.
huge() { (ulimit -v 2000000; "$switchyard" train config.ini --run.dir=dry "$@"); }
expect_error "tokens a step" huge --train.global_batch=268435456 --train.micro_batch=1
expect_error "GB on each rank" huge --train.global_batch=4194304 --train.micro_batch=4194304 --model.d_model=65536 --model.head_dim=64 --model.d_ff=64
expect_error "parameters" huge --moe.experts=1048576 --moe.d_ff=16777216

# ---- warnings at every start ----
expect_ok "$switchyard" train config.ini --dry-run --run.dir=dry
says_not warning
expect_ok "$switchyard" train config.ini --dry-run --run.dir=dry --moe.top_k=1
says_not warning
expect_ok "$switchyard" train config.ini --dry-run --run.dir=dry --moe.top_k=1 --moe.renormalize=true
says "warning: moe.top_k = 1 with moe.renormalize = true"
says "set moe.renormalize = auto"
expect_ok "$switchyard" train config.ini --run.dir=doubtful --train.steps=1 --moe.aux_scope=global_batch
says "set train.micro_batch = 6"
expect_ok ranks 2 train config.ini --run.dir=sure --train.steps=1 --train.warmup=1 --moe.aux_scope=global_batch
says_not warning
expect_ok "$switchyard" train config.ini --dry-run --run.dir=dry --train.warmup=7
says "warning: train.warmup = 7 is beyond train.steps = 6"
expect_ok "$switchyard" train config.ini --dry-run --run.dir=dry --model.seq_len=2048 --train.micro_batch=1
says "sequences of 2048 tokens, fewer than train.global_batch = 6"
expect_ok "$switchyard" train config.ini --run.dir=full --train.steps=4 --run.log_every=2 --moe.capacity_factor=0.01
[[ $(grep -c "warning: .*of the assignments of steps 1 to 2 were dropped: raise moe.capacity_factor" .err) -eq 1 ]] || die "drops are not reported"
[[ $(grep -c "were dropped" .err) -eq 1 ]] || die "drops are reported more than once"
# The guide trains the quickstart model alone, without a warning.
read -r -a alone < <(sed -n 's/^    build\/switchyard train configs\/quickstart.ini //p' "$root/docs/guide/training.md")
expect_ok "$switchyard" train "$root/configs/quickstart.ini" "${alone[@]}" --data.path=data --dry-run
no_other_warning

# The small models of configs/ print no warning, on the ranks that their first lines name.
for config in "$root"/configs/{switch,mixtral,deepseek}-tiny.ini "$root/configs/nanogpt-cpu.ini"; do
  ranks=$(sed -nE 's/^#.*mpirun.sh ([0-9]+) .*/\1/p' "$config")
  expect_ok "$switchyard" train "$config" --data.path=data --dry-run --ranks "${ranks:-1}"
  no_other_warning
done

# ---- --quiet: only the last step, its performance, and all warnings ----
expect_ok "$switchyard" train config.ini --run.dir=quiet --quiet --moe.top_k=1 --moe.renormalize=true
[[ $(wc -l <.out) -eq 2 && $out == "step 6/6 "*$'\nperformance: '* ]] || die "not the last step and its performance alone"
says "warning: moe.top_k"
expect_ok "$switchyard" evaluate quiet --backend cpu --quiet

# ---- a resume prints the changes; another model is refused ----
expect_ok "$switchyard" train config.ini --run.dir=run --train.steps=3
expect_ok ranks 2 train config.ini --run.dir=run --run.resume=true --train.lr=2e-3 --moe.top_k=1 --moe.renormalize=false \
  --moe.score=sigmoid --moe.capacity_factor=2 --train.micro_batch=1 --parallel.ep=2
for change in "moe.top_k 2 -> 1" "moe.score softmax -> sigmoid" "moe.capacity_factor 1.25 -> 2" \
  "train.lr 0.001 -> 0.002" "train.steps 3 -> 6" "moe.renormalize true -> false" "train.micro_batch 3 -> 1" \
  "layout dp 1 tp 1 ep 1 etp 1 edp 1 -> dp 2 tp 1 ep 2 etp 1 edp 1"; do
  grep -q "^changed .*$change" .out || die "no word of: $change"
done
[[ $(grep -c ^changed .out) -eq 1 && $(grep ^changed .out) != *run.* ]] || die "more than what changed"
expect_ok ranks 2 train config.ini --run.dir=run --run.resume=true --train.lr=2e-3 --moe.top_k=1 --moe.renormalize=false \
  --moe.score=sigmoid --moe.capacity_factor=2 --train.micro_batch=1 --parallel.ep=2 --train.steps=6
[[ $out != *changed* ]] || die "a change where there is none"
expect_error "holds another model (model.window: 4 here, 0 there)" "$switchyard" train config.ini --run.dir=run --run.resume=true --model.window=4
expect_ok "$switchyard" train config.ini --run.dir=run --run.resume=true --train.steps=7 --train.seed=9
says "the order of samples changes with train.seed: 9 here, 1 there"

# ---- the program ----
expect_ok "$switchyard" --version
[[ ${out%%$'\n'*} =~ ^switchyard\ [0-9]+\.[0-9]+\.[0-9]+$ ]] || die "not a version"
expect_ok "$switchyard" help help
expect_output "usage: switchyard"
complete_line() {  # WORD...; sets `out` to bash's candidates for the last word
  COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMPREPLY=()
  compopt() { :; }  # bash defines it only during completion
  _switchyard
  out="${COMPREPLY[*]}"
}
offers() { [[ " $out " == *" $1 "* ]] || die "'$1' is not offered, but: $out"; }
"$switchyard" completion bash >completion
source completion
completes() {  # WORD... EXPECTED; checks the candidates for the last word before EXPECTED
  complete_line "$switchyard" "${@:1:$#-1}"
  [[ $out == "${*: -1}" ]] || die "'$out' is offered for: ${*:1:$#-1}"
}
completes tr train
completes train --train.ste --train.steps=
completes train --dr --dry-run
completes train c ""  # bash completes file names itself
completes train --attention.local.wind --attention.local.window=
complete_line "$switchyard" experts --
for option in --html --csv --json --help; do offers $option; done
complete_line "$switchyard" help ""
for topic in config train completion moe moe.top_k; do offers $topic; done
complete_line "$switchyard" help config tr
[[ $out == "train "* ]] || die "no section train: $out"
# Completion of values, whether or not bash has split the words at = and :.
completes train --moe.score = "softmax sigmoid sqrt_softplus"
completes train --moe.score = sof softmax
completes train --moe.score=sof --moe.score=softmax
completes train --moe.score sof softmax
completes plan --run.dtype=b --run.dtype=bf16
completes train --model.ffn=rel "--model.ffn=relu --model.ffn=relu2"
completes train --model.tie_embeddings=t --model.tie_embeddings=true
completes train --attention.local.position=al --attention.local.position=alibi
completes train --machine h "h100 h200 h800"
completes doctor --machine h ""
completes evaluate run --backend cu cuda
completes export run out --family mixt mixtral
completes prepare --tokenizer train train-spm:
completes prepare --tokenizer train-spm : 80 ""
completes completion "" "bash zsh fish"
expect_ok "$switchyard" completion candidates train --model.v_head
expect_output "with model.kv_lora_rank, the width of a head's values"
completes train --run.dir=ru ""
for shell in zsh fish; do
  expect_ok "$switchyard" completion $shell
  expect_output "completion candidates"
  if command -v $shell >/dev/null; then $shell -n "$work/.out" || die "$shell cannot read its script"; fi
done
expect_error "expected bash, zsh or fish" "$switchyard" completion tcsh

# ---- help of a section and of a key; extra words are errors ----
expect_ok "$switchyard" help moe.top_k
[[ $out == "moe.top_k (default: 2)
    the number of experts that the router sends each token to.
    Takes a whole number from 1 to 1048576." ]] || die "another help of moe.top_k"
key=$out
expect_ok "$switchyard" help config moe.top_k
[[ $out == "$key" ]] || die "help config moe.top_k is not help moe.top_k"
expect_ok "$switchyard" help moe
[[ $out == "[moe]"* && $out != *"[model]"* && $(wc -L <"$work/.out") -le 80 ]] || die "not the section, or too wide"
expect_output "one of softmax, sigmoid, sqrt_softplus"
expect_ok "$switchyard" help config train
[[ $out == "[train]"* ]] || die "not the section train"
expect_ok "$switchyard" help train
expect_output "usage: switchyard train"
expect_ok "$switchyard" help attention.local.window
expect_output "model.window (default: 0)"
expect_error "did you mean moe.top_k?" "$switchyard" help moe.topk
expect_error "'foo' is no command, section or key" "$switchyard" help foo
expect_error "unexpected 'bar'" "$switchyard" help foo bar
expect_error "unexpected 'extra'" "$switchyard" help train extra
expect_error "unexpected 'extra'" "$switchyard" help config moe extra
expect_error "'extra' is no command" "$switchyard" --help extra
for line in "version" "doctor" "train config.ini" "plan config.ini --ranks 1" "scale config.ini --ranks 1" "evaluate run" \
  "generate run --prompt x" "inspect run" "diff run run" "experts run" "import a b" "export a b" "completion bash" "prepare"; do
  # shellcheck disable=SC2086
  expect_error "unexpected 'extra'" "$switchyard" $line extra
done

# ---- both kinds of comments, base files, and the source of each value ----
{ echo "base = ../config.ini ; the settings of which this is a part"; echo "[train]"; echo "; of this file"; echo "steps = 2e0"; } >home/more.ini
expect_ok "$switchyard" train home/more.ini --run.dir=based
expect_output "step 2/2"
expect_ok "$switchyard" config home/more.ini --train.lr=0.25 --run.dir="a b"
for line in "layers = 2 .*# config.ini:2" "steps = 2 .*# home/more.ini:4" "warmup = 2 .*# config.ini:" "lr = 0.25 .*# command line" \
  "every = 1 .*# default" "head_dim = 8 .*# default, by other keys"; do
  grep -q "^$line" .out || die "no line $line"
done
cp .out printed.ini
expect_ok "$switchyard" config printed.ini
diff <(sed 's/ *#.*//' printed.ini) <(sed 's/ *#.*//' .out) >&2 || die "another configuration is read than was printed"
expect_ok "$switchyard" train home/more.ini --train.lr=0.25 --run.dir=again
expect_ok "$switchyard" config again/config.ini --run.dir="a b"
diff <(sed 's/ *#.*//' printed.ini) <(sed 's/ *#.*//' .out) >&2 || die "another configuration is trained than is printed"
expect_ok "$switchyard" config home/more.ini --json
expect_output '"train.steps"'
sed -i 's/2e0/2e-1/' home/more.ini
expect_error "home/more.ini:4: train.steps = '2e-1': expected a whole number" ranks 2 train home/more.ini --run.dir=x

# If a sample configuration needs several ranks, the error names the settings for one rank.
for config in "$root"/configs/{quickstart,switch-tiny,mixtral-tiny,deepseek-tiny,bert-tiny,nanogpt-cpu}.ini; do
  call "$switchyard" train "$config" --data.path=data --dry-run
  settings=()
  if [[ $code -ne 0 ]]; then
    read -r -a settings < <(sed -nE 's/.*layouts work: [^(]*\(add ([^)]*)\).*/\1/p' .err)
    [[ ${#settings[@]} -gt 0 ]] || die "no settings to add"
  fi
  expect_ok "$switchyard" train "$config" --data.path=data --dry-run "${settings[@]}"
done
