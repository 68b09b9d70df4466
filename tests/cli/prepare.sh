#!/usr/bin/env bash
# Tests switchyard prepare: files and folders to a data set. Errors name bad input and change
# nothing.
source "$2/tests/cli/lib/lib.sh"

mkdir -p text/en/deep text/de
for i in $(seq 1 200); do
  echo "the wagon $i rolls down the hump and is braked on track $((i * 7 % 31))" >"text/en/$i"
  echo "der Wagen $i rollt den Ablaufberg hinab, größer als $((i % 9))" >"text/de/$i"
done
ln -s .. text/en/deep/loop
ln -s ../en text/de/link

expect_ok "$switchyard" prepare --domain english=text/en --domain german=text/de,text/en/7 \
  --tokenizer bytes --valid-fraction 0.1 --output data
expect_output "english  train"
[[ $err == *"1 file with the text of another"* ]] || die "a file in two domains is not reported"
expect_output "german   valid"
[[ $err == *"left out 2 links"* ]] || die "links to folders are not reported"
for file in data/{english,german}.{train,valid}.{bin,idx} data/dataset.ini; do expect_file "$file"; done
expect_no_file data/prepare.tmp
[[ $(head -c 7 data/english.train.idx) == MMIDIDX ]] || die "not a Megatron index"
# u16 tokens: one per byte, and one at the end of each document.
tokens=$(($(cat data/english.{train,valid}.bin | wc -c) / 2))
[[ $tokens -eq $(($(cat text/en/[0-9]* | wc -c) + 200)) ]] || die "$tokens tokens"
grep -q '^domains = english,german$' data/dataset.ini || die "domains are not in the command's order"

# On one rank and on three ranks, the same command gives the same files.
expect_ok ranks 3 prepare --domain english=text/en --domain german=text/de,text/en/7 \
  --valid-fraction 0.1 --output again --json
grep -q '"tokenizer": "bytes"' .out || die "no JSON"
diff -r data again || die "the result differs"

# Many paths of a domain together are longer than a path may be.
expect_ok "$switchyard" prepare --domain "a=$(printf 'text/en/7,%.0s' {1..500})text/de" --tokenizer bytes --output many
expect_ok "$switchyard" prepare --domain a=text --tokenizer train-spm:330 --output spm
expect_file spm/tokenizer.model
expect_ok "$switchyard" prepare --domain a=text/de --tokenizer spm:spm/tokenizer.model --output spm2
cmp spm/tokenizer.model spm2/tokenizer.model || die "the model was not copied"

# A tokenizer.json of bytes, with one merge.
mkdir hf
{
  echo '{"added_tokens": [{"id": 1, "content": "</s>", "special": true}], "model": {"type": "BPE", "byte_fallback": true,'
  echo '"vocab": {"<unk>": 0, "</s>": 1, "t": 2, "h": 3, "th": 4'
  for i in $(seq 0 255); do printf ', "<0x%02X>": %d' "$i" $((i + 5)); done
  echo '}, "merges": [["t", "h"]]}, "decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}}'
} >hf/tokenizer.json
expect_ok "$switchyard" prepare --domain a=text --tokenizer hf:hf --valid-fraction 0.2 --output hf-data
cmp hf/tokenizer.json hf-data/tokenizer.json || die "the tokenizer was not copied"
grep -q '^tokenizer = huggingface$' hf-data/dataset.ini || die "another tokenizer in dataset.ini"
grep -q '^end_of_text = 1$' hf-data/dataset.ini || die "another end of text in dataset.ini"
expect_ok "$switchyard" inspect hf-data
expect_output "huggingface (vocabulary 261)"
small_config <<'INI'
[train]
steps = 2
global_batch = 2
micro_batch = 1
[run]
backend = cpu
INI
expect_ok "$switchyard" train config.ini --data.path=hf-data --run.dir=hf-run --quiet
expect_ok "$switchyard" generate hf-run --backend cpu --prompt "the größte" --tokens 3
[[ $out == "the größte"* ]] || die "the prompt is not what it was"
expect_ok "$switchyard" evaluate hf-run --backend cpu --max-windows 2
expect_output "bits/byte"
sed -i 's/BPE/WordLevel/' hf/tokenizer.json
expect_error "hf/tokenizer.json: the model 'WordLevel' is not supported" \
  "$switchyard" prepare --domain a=text --tokenizer hf:hf --output x

before=$(find data -type f -exec sha256sum {} + | sort)
expect_error "--overwrite" "$switchyard" prepare --domain a=text --output data
expect_error "--overwrite" ranks 2 prepare --domain english=text --output data
[[ $(find data -type f -exec sha256sum {} + | sort) == "$before" ]] || die "the data set was changed"
# --overwrite replaces the old data set, and no other file.
echo mine >data/notes
expect_ok "$switchyard" prepare --domain english=text/en --output data --overwrite
[[ $(cd data && echo *) == "dataset.ini english.train.bin english.train.idx english.valid.bin english.valid.idx notes" ]] ||
  die "not the new data set alone: $(ls data)"
# A folder of texts is refused as --output, also with --overwrite.
expect_error "--output text holds 'de', and is no data set" "$switchyard" prepare --domain a=hf --output text
expect_error "--output text holds 'de', and is no data set" ranks 2 prepare --domain a=hf --output text --overwrite
[[ $(ls -A text) == $'de\nen' ]] || die "something was written into the folder of texts"

# Binary files, hidden files and excluded files in folders are left out and counted. A binary file
# that is named on the command line is an error.
mkdir -p mixed/.git mixed/cache
cp text/en/[0-9] mixed
printf '\211PNG\r\n\032\n\0\0' >mixed/photo.png
head -c 3000 data/english.train.bin >mixed/.git/object
echo "more text" >mixed/cache/page
echo '# Title' >mixed/README.md
expect_ok "$switchyard" prepare --domain a=mixed --output of-mixed --exclude cache --exclude '*.md'
[[ $err == *"left out 1 binary file, 1 hidden file or folder, 2 files and folders by --include and --exclude"* ]] ||
  die "the omitted files are not reported: $err"
[[ $err == *"mixed/photo.png"* ]] || die "no binary file is named"
grep -q "^# Left out: 1 binary file, " of-mixed/dataset.ini || die "dataset.ini does not say what was left out"
mkdir nine && cp text/en/[0-9] nine
expect_ok "$switchyard" prepare --domain a=nine --output of-nine
cmp of-nine/a.train.bin of-mixed/a.train.bin || die "another data set than from the texts alone"
expect_ok "$switchyard" prepare --domain a=mixed --output of-names --include '[0-9]' --json
grep -q '"binary": 0' .out && grep -q '"filtered": 3' .out && grep -q '"hidden": 1' .out || die "no counts in JSON"
cmp of-nine/a.train.bin of-names/a.train.bin || die "another data set with --include"
expect_error "mixed/photo.png: byte 0 is not UTF-8" "$switchyard" prepare --domain a=mixed,mixed/photo.png --output x
expect_error "mixed/photo.png: byte 0 is not UTF-8" ranks 2 prepare --domain a=mixed/photo.png --output x
expect_error "its files are binary, such as images/photo.png" bash -c 'mkdir images; cp mixed/photo.png images; "$@"' - \
  "$switchyard" prepare --domain a=images --output x
expect_ok "$switchyard" prepare --domain a=mixed/photo.png --output of-photo --binary
expect_error "--binary" "$switchyard" prepare --domain a=mixed --tokenizer train-spm:300 --binary --output x
expect_error "--include ''" "$switchyard" prepare --domain a=mixed --include '' --output x

: >empty
printf 'gr\366\337er' >latin
touch file
expect_error "absent" "$switchyard" prepare --domain a=absent --output x
expect_error "domain a is empty" "$switchyard" prepare --domain a=empty --output x
expect_error "latin: byte 2 is not UTF-8" "$switchyard" prepare --domain a=latin --tokenizer spm:spm/tokenizer.model --output x
expect_error "latin: byte 2 is not UTF-8" "$switchyard" prepare --domain a=text,latin --tokenizer train-spm:330 --output x
expect_error "largest possible vocabulary is" "$switchyard" prepare --domain a=text --tokenizer train-spm:60000 --output x
expect_error "latin is not a SentencePiece model" "$switchyard" prepare --domain a=text --tokenizer spm:latin --output x
expect_error "choose bytes" "$switchyard" prepare --domain a=text --tokenizer byte --output x
expect_error "cannot read nowhere: No such file" "$switchyard" prepare --domain a=text --tokenizer spm:nowhere --output x
[[ $(wc -l <.err) -eq 1 ]] || die "text was read before the tokenizer"
expect_error "--valid-fraction" "$switchyard" prepare --domain a=text --valid-fraction 1.5 --output x
expect_error "valid-fraction" "$switchyard" prepare --domain a=text --valid-fraction half --output x
expect_error "given twice" "$switchyard" prepare --domain a=text --domain a=text --output x
expect_error "NAME=PATH" "$switchyard" prepare --domain text --output x
expect_error "NAME=PATH" "$switchyard" prepare --domain a=text,, --output x
expect_error "'a/b'" "$switchyard" prepare --domain a/b=text --output x
expect_error "write elsewhere" "$switchyard" prepare --domain a=text --output text/x
expect_error "choose another --output" "$switchyard" prepare --domain a=text --output file/x
expect_error "--domain" "$switchyard" prepare --output x
expect_error "--output" "$switchyard" prepare --domain a=text
expect_error "--tokenizer" "$switchyard" prepare --domain a=text --output x --tokeniser bytes
expect_no_file x text/x

# JSON lines, compressed text, and paths with commas give the same data set as plain files.
mkdir plain packed
for i in $(seq 1 40); do
  printf 'document %d\nof "two" lines\n' "$i" >"plain/$(printf %02d "$i")"
  printf '{"id": %d, "body": "document %d\\nof \\"two\\" lines\\n"}\n' "$i" "$i" >>packed/a,b.jsonl
done
gzip -k packed/a,b.jsonl
cat plain/* >all && gzip -k all
expect_ok "$switchyard" prepare --domain a=plain --output of-files
for paths in packed/a,b.jsonl 'packed/a\,b.jsonl' packed/a,b.jsonl.gz 'packed/a\,b.jsonl.gz,packed/a\,b.jsonl'; do
  expect_ok "$switchyard" prepare --domain a="$paths" --text-key body --output of-lines --overwrite
  diff -r -I '^#' of-files of-lines || die "another data set from $paths"
done
expect_ok "$switchyard" prepare --domain a=all --output of-all
expect_ok "$switchyard" prepare --domain a=all.gz --output of-gzip
diff -r of-all of-gzip || die "another data set from all.gz"
expect_error "a,b.jsonl: line 1 has no key 'text'" "$switchyard" prepare --domain a=packed/a,b.jsonl --output x
expect_error "packed/a: " "$switchyard" prepare --domain a=packed/a,packed/b.jsonl --output x
head -c 100 all.gz >cut.gz
expect_error "cut.gz ends in the middle" "$switchyard" prepare --domain a=cut.gz --output x
cp latin latin.gz
expect_error "latin.gz is no gzip file" "$switchyard" prepare --domain a=latin.gz --output x
expect_no_file x
expect_ok "$switchyard" help prepare
expect_output "one over 1 MiB"

# The validation text is a fraction of the bytes, for any lengths of documents.
mkdir lengths
for i in $(seq 1 100); do echo "line $i of thirty characters..."; done >lengths/short
for i in $(seq 1 900); do echo "line $i of the long document"; done >lengths/long
truncate -s 3000 lengths/short
truncate -s 20001 lengths/long
expect_error "--seed -1: expected a whole number from 0 to" "$switchyard" prepare --domain a=lengths --seed -1 --output lengths.out
for seed in 1 2 3 4 5 6; do
  expect_ok "$switchyard" prepare --domain a=lengths --seed $seed --output lengths.out --overwrite
  expect_output "5."
  bytes=$(sed -n 's/^valid_bytes = //p' lengths.out/dataset.ini)
  [[ $bytes -ge 1100 && $bytes -le 1300 ]] || die "$bytes of 23001 bytes for validation, instead of 1150"
done

# If it is killed, it leaves no data set, and the same command then works.
head -c 100000000 /dev/zero | tr '\0' 'x' >big
"$switchyard" prepare --domain a=big --output killed >/dev/null 2>&1 &
for _ in $(seq 500); do
  [[ -e killed/prepare.tmp/a.train.bin ]] && break
  sleep 0.01
done
kill -KILL $! 2>/dev/null || true
wait $! 2>/dev/null || true
if [[ ! -e killed/dataset.ini ]]; then # otherwise it ended before the signal
  expect_ok "$switchyard" prepare --domain a=big --output killed
fi
expect_file killed/dataset.ini
expect_no_file killed/prepare.tmp
