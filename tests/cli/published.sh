#!/usr/bin/env bash
# Tests that the table of public runs in docs/design/cost-model.md is current to its digits, and
# that plans take every machine file.
source "$2/tests/cli/lib/lib.sh"

# The script works on the folder that it lies in, so a copy can have another table.
mkdir -p copy/docs/design
cp -r "$root/benchmarks" copy/
ln -s "$root/configs" copy/configs
page=copy/docs/design/cost-model.md
cp "$root/docs/design/cost-model.md" $page
published() {  # ARGUMENTS...
  bash copy/benchmarks/published.sh "$switchyard" "$@"
}
expect_ok published --check
[[ $(grep -c '^| \[' $page) -ge 8 ]] || die "fewer than eight public runs"

# A run without --check writes the table of the runs that are left. A stale digit is found.
sed -i '4,$d' copy/benchmarks/published.tsv
expect_ok published
[[ $(grep -c '^| \[' $page) -eq 2 ]] || die "not the runs of the file"
cmp <(grep -v '^| \[' $page) <(grep -v '^| \[' "$root/docs/design/cost-model.md") || die "more than the table has changed"
expect_ok published --check
sed -i '/^| \[/s/| 1\.[0-9]* |/| 0.01 |/' $page
expect_exit 1 published --check
[[ $err == *"out of date"* ]] || die "no word about the table"
expect_exit 2 published --chek
sed -i '/end of published/d' $page
expect_exit 2 published

for file in "$root"/configs/machines/*.ini; do
  name=$(basename "$file" .ini)
  ranks=$(sed -nE 's/^ranks_per_node = ([0-9]+).*/\1/p' "$file")
  expect_ok "$switchyard" plan "$root/configs/models/olmoe-7b-1b.ini" --ranks $((2 * ranks)) --machine "$name" --layouts ep4 \
    --run.dtype=bf16 --train.global_batch=$((8 * ranks)) --train.micro_batch=1
  expect_output "ranks of $name"
done
