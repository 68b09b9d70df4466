#!/usr/bin/env bash
# Tests that commands refuse data of another tokenizer, even if the vocabularies have the same size.
# A run has a copy of its tokenizer. A copied run thus generates text without its data set, and an
# export has files that AutoTokenizer loads.
source "$2/tests/cli/lib/lib.sh"

make_text text 120
mkdir other
for i in $(seq 1 120); do echo "der Wagen $i rollt den Ablaufberg hinab und wird auf Gleis $((i * 7 % 31)) gebremst" >other/$i; done
small_config <<'INI'
[train]
steps = 2
warmup = 1
global_batch = 2
micro_batch = 1
[run]
backend = cpu
INI
# Makes a tokenizer.json of bytes with one merge, and with tokens for the start and the end of a
# text.
hugging_face() {  # FOLDER LETTER LETTER
  local i
  mkdir "$1"
  {
    echo '{"added_tokens": [{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,'
    echo '"normalized": false, "special": true}, {"id": 262, "content": "<s>", "single_word": false, "lstrip": false,'
    echo '"rstrip": false, "normalized": false, "special": true}],'
    echo '"model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "fuse_unk": true,'
    printf '"vocab": {"<unk>": 0, "</s>": 1, "%s": 2, "%s": 3, "%s": 4' "$2" "$3" "$2$3"
    for i in $(seq 0 255); do printf ', "<0x%02X>": %d' "$i" $((i + 5)); done
    printf ', "_": 261, "<s>": 262}, "merges": [["%s", "%s"]]},' "$2" "$3"
    echo '"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}}'
  } >"$1/tokenizer.json"
  echo '{"eos_token": "</s>", "bos_token": {"__type": "AddedToken", "content": "<s>", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false}}' >"$1/tokenizer_config.json"
}
hugging_face hf-th t h
hugging_face hf-en e n
prepare() {  # DATA TEXT TOKENIZER
  expect_ok "$switchyard" prepare --domain a="$2" --tokenizer "$3" --valid-fraction 0.2 --output "$1" --quiet
}
prepare spm text train-spm:290
prepare spm2 other train-spm:290
prepare th text hf:hf-th
prepare en text hf:hf-en
prepare bytes text bytes
for data in spm spm2 th bytes; do
  grep -Eq '^tokenizer_sha256 = [0-9a-f]{64}$' $data/dataset.ini || die "no digest of the tokenizer in $data"
done
one_warning() {  # TEXT
  [[ $(grep -c '^switchyard: warning: ' .err) -eq 1 ]] || die "not exactly one warning"
  [[ $err == *"$1"* ]] || die "no '$1' in the warning"
}
no_warning() { [[ $err != *warning* ]] || die "a warning"; }
train() { "$switchyard" train config.ini --quiet "$@"; }

# ---- evaluation, resume, and start from weights ----
expect_ok train --run.dir=run --data.path=spm
no_warning
expect_file run/tokenizer/tokenizer.model
expect_ok "$switchyard" inspect run
expect_output "sentencepiece $(sha256sum <spm/tokenizer.model | cut -d' ' -f1)"
mismatch="spm2 was prepared with the tokenizer sentencepiece $(sha256sum <spm2/tokenizer.model | head -c 12), and run/checkpoints/step-00000002 was trained with sentencepiece $(sha256sum <spm/tokenizer.model | head -c 12): prepare the text with --tokenizer spm:$PWD/run/tokenizer/tokenizer.model, or"
for how in "" "ranks 2"; do
  call_it() { if [[ $how ]]; then ranks 2 "$@"; else "$switchyard" "$@"; fi; }
  expect_error "$mismatch give --force-data" call_it evaluate run --data spm2 --backend cpu
  expect_error "$mismatch give --force-data" call_it generate run --data spm2 --backend cpu --prompt t
  expect_error "$mismatch set data.force = true" call_it train config.ini --run.dir=run --run.resume=true --train.steps=4 \
    --data.path=spm2
  expect_error "$mismatch set data.force = true" call_it train config.ini --run.dir=x --run.init_from=run --data.path=spm2
done
rm -rf x
expect_ok "$switchyard" evaluate run --data spm2 --backend cpu --force-data --quiet
one_warning "its ids are taken as they are"
expect_ok ranks 2 train config.ini --quiet --run.dir=forced --run.init_from=run --data.path=spm2 --data.force=true
one_warning "its ids are taken as they are"
cmp forced/tokenizer/tokenizer.model spm2/tokenizer.model || die "not the tokenizer of the data"
expect_ok "$switchyard" evaluate run --backend cpu --quiet
no_warning
# Evaluation accepts other data of the same tokenizer.
expect_ok "$switchyard" prepare --domain b=other --tokenizer spm:run/tokenizer/tokenizer.model --valid-fraction 0.2 --output same
expect_ok "$switchyard" evaluate run --data same --backend cpu --quiet
no_warning

# ---- a copied run, without its data set ----
generate() { expect_ok "$switchyard" generate "$1" --backend cpu --prompt "token 7" --tokens 8 --temperature 0; }
expect_ok train --run.dir=run-th --data.path=th
expect_ok train --run.dir=run-bytes --data.path=bytes
for run in run run-th run-bytes; do
  generate $run
  alone=$out
  [[ $alone == "token 7"* ]] || die "not the prompt"
  mkdir away && cp -r $run away/copy
  mkdir hidden && mv spm th bytes hidden
  generate away/copy
  [[ $out == "$alone" ]] || die "another text without the data set"
  no_warning
  mv hidden/* . && rm -r away hidden
done
# Another tokenizer at the path of the data set is not used for the run.
mv spm aside && cp -r spm2 spm
generate run
[[ $out == "token 7"* ]] || die "another tokenizer was used"
expect_error "spm was prepared with the tokenizer" "$switchyard" evaluate run --backend cpu
rm -r spm && mv aside spm

# ---- text that appears while it is generated ----
# A byte of an unfinished character must not be printed as U+FFFD, which a later byte replaces.
text_of() { perl -ne 'if (s/.*"text": "(.*?)"[,}].*/$1/s) { s/\\u([0-9a-f]{4})/chr hex $1/ge; s/\\n/\n/g; s/\\t/\t/g; s/\\r/\r/g; s/\\b/\b/g; s/\\f/\f/g; s/\\(.)/$1/g; print }' | tr -d '\000'; }
for seed in 1 2 3; do
  expect_ok "$switchyard" generate run --backend cpu --prompt "token 7" --tokens 200 --temperature 50 --seed $seed --json
  expected="token 7$(text_of <.out)"
  expect_ok "$switchyard" generate run --backend cpu --prompt "token 7" --tokens 200 --temperature 50 --seed $seed
  [[ $(tr -d '[:cntrl:]' <<<"$out") == "$(tr -d '[:cntrl:]' <<<"$expected")" ]] || die "another text while it is generated: $out"
done

# ---- exports and imports ----
expect_ok "$switchyard" export run-th th-model --quiet
[[ $err == "" ]] || die "an exported tokenizer causes a message"
cmp hf-th/tokenizer.json th-model/tokenizer.json || die "another tokenizer.json"
grep -q '"tokenizer_class": "PreTrainedTokenizerFast"' th-model/tokenizer_config.json || die "no class of the tokenizer"
for file in config generation_config; do
  grep -q '"bos_token_id": 262' th-model/$file.json || die "no bos_token_id in $file.json"
  grep -q '"eos_token_id": 1' th-model/$file.json || die "no eos_token_id in $file.json"
done
expect_ok "$switchyard" export run spm-model --quiet
[[ $err == "" ]] || die "an exported tokenizer causes a message"
expect_file spm-model/tokenizer.json spm-model/tokenizer.model spm-model/tokenizer_config.json
grep -q '"bos_token_id": null' spm-model/config.json || die "a beginning that the tokenizer does not have"
# If a run was resumed with data of another tokenizer, its earlier checkpoints are exported without
# one.
cp -r run resumed
expect_ok train --run.dir=resumed --run.resume=true --train.steps=4 --data.path=spm2 --data.force=true
expect_ok "$switchyard" export resumed/checkpoints/step-00000002 resumed-model --quiet
[[ $err == "note: $PWD/resumed/tokenizer holds the tokenizer sentencepiece $(sha256sum <spm2/tokenizer.model | head -c 12), and "* ]] ||
  die "no word of the other tokenizer"
expect_no_file resumed-model/tokenizer.model
expect_ok "$switchyard" export run-bytes bytes-model --quiet
[[ $err == "note: transformers has no tokenizer of bytes"* && $(wc -l <.err) -eq 1 ]] || die "not reported in one line"
grep -q '"eos_token_id": 256' bytes-model/config.json || die "no eos_token_id"

expect_ok "$switchyard" import th-model imported
for data in en bytes; do
  [[ $data == en ]] || sed -i 's/^vocab = .*/vocab = 263/; /^ids_sha256/d' bytes/dataset.ini
  expect_error "--tokenizer hf:$PWD/imported/huggingface, or give --force-data" \
    "$switchyard" evaluate imported --data $data --backend cpu
  expect_error "--tokenizer hf:$PWD/imported/huggingface, or set data.force" \
    ranks 2 train imported/config.ini --run.dir=tuned --run.init_from=imported --data.path=$data --run.backend=cpu \
    --train.global_batch=2 --train.micro_batch=1
done
rm -rf tuned
# Import, training and export keep all files of the tokenizer.
echo '{"unk_token": "<unk>"}' >imported/huggingface/special_tokens_map.json
tune=(train imported/config.ini --run.dir=tuned --run.init_from=imported --data.path=th --run.backend=cpu
  --train.global_batch=2 --train.micro_batch=1 --train.steps=2 --train.warmup=1 --model.seq_len=16 --quiet)
for command in "${tune[*]}" "export imported again" "generate imported --backend cpu --prompt t"; do
  # shellcheck disable=SC2086
  expect_error "special_tokens_map.json was not imported" "$switchyard" $command
done
rm -rf tuned
(cd imported/huggingface && sha256sum special_tokens_map.json >>SHA256SUMS)
expect_ok "$switchyard" evaluate imported --data th --backend cpu --quiet
no_warning
expect_ok "$switchyard" "${tune[@]}"
no_warning
expect_ok "$switchyard" export tuned tuned-model --quiet
for file in tokenizer.json special_tokens_map.json generation_config.json; do
  cmp imported/huggingface/$file tuned-model/$file || die "another $file"
done

# ---- unknown tokenizers: one warning ----
cp -r th megatron
sed -i '/^model\|^tokenizer_sha256\|^ids_sha256\|^end_of_text/d; s/^tokenizer = .*/tokenizer = none/' megatron/dataset.ini
expect_ok "$switchyard" evaluate run-th --data megatron --backend cpu --quiet
one_warning "the tokenizer of megatron is not known: see that it is huggingface"
expect_ok ranks 2 train config.ini --quiet --run.dir=foreign --run.init_from=run-th --data.path=megatron
one_warning "the tokenizer of megatron is not known"
cmp foreign/tokenizer/tokenizer.json hf-th/tokenizer.json || die "the tokenizer did not come along"
generate foreign
expect_ok train --run.dir=foreign --run.resume=true --train.steps=3 --data.path=megatron
no_warning  # the run was trained with these data
cp -r "$root/tests/fixtures/first-run/run" first-run
expect_ok "$switchyard" evaluate first-run --data "$root/tests/fixtures/first-run/data" --backend cpu \
  --max-windows 1 --quiet
[[ $(grep -c 'the tokenizer of .* is not known' .err) -eq 1 ]] || die "no warning of an old checkpoint"

# ---- the Unicode versions of the libraries that made the ids ----
versions=$(sed -n 's/^unicode_versions = //p' th/dataset.ini)
[[ $versions == "PCRE2 "*", ICU "* ]] || die "no versions of Unicode in th/dataset.ini"
! grep -q unicode spm/dataset.ini bytes/dataset.ini || die "versions for a tokenizer that does not use them"
expect_ok "$switchyard" doctor
expect_output "Unicode   PCRE2 "
expect_ok train --run.dir=here --data.path=th
no_warning
expect_ok "$switchyard" generate here --prompt th --tokens 2 --backend cpu
no_warning
# The same text prepared with other library versions: another data set with the same tokenizer.
cp -r th elsewhere
sed -i 's/^unicode_versions = .*/unicode_versions = PCRE2 17.0.0, ICU 17.0/' elsewhere/dataset.ini
expect_ok "$switchyard" generate here --prompt th --tokens 2 --backend cpu --data elsewhere
[[ $err == *"elsewhere was prepared with the Unicode tables of PCRE2 17.0.0, ICU 17.0, and here/"*" was trained with data of $versions: characters newer than Unicode 16"* ]] || die "no warning of other data"
[[ $err == *"the ids of elsewhere were made with the Unicode tables of PCRE2 17.0.0, ICU 17.0, and this program has $versions"* ]] || die "no warning of another program"
expect_ok "$switchyard" prepare --domain a=text --tokenizer hf:elsewhere --output again --quiet
one_warning "the ids of elsewhere were made with"
expect_ok train --run.dir=there --data.path=elsewhere
no_warning
expect_ok "$switchyard" generate there --prompt th --tokens 2 --backend cpu
one_warning "the ids of there/checkpoints/step-00000002 were made with the Unicode tables of PCRE2 17.0.0, ICU 17.0"
# A resume with other data of the same tokenizer works.
expect_ok train --run.dir=there --data.path=again --run.resume=true --train.steps=3
[[ $err == *"again was prepared with the Unicode tables of $versions, and there/"* ]] || die "no warning of a resume"
# A data set that was made before dataset.ini had versions.
sed -i '/^unicode_versions/d' elsewhere/dataset.ini
expect_ok "$switchyard" generate here --prompt th --tokens 2 --backend cpu --data elsewhere
no_warning
