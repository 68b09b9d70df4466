#!/usr/bin/env bash
# Tests the instruction set of the CPU kernels: SWITCHYARD_ISA, the output of runs and of doctor,
# and ranks that differ.
source "$2/tests/cli/lib/lib.sh"
export OMP_NUM_THREADS=1
unset SWITCHYARD_ISA
# Starts ranks, of which the last one uses the narrowest set, as on an older node.
cat >last_narrow.sh <<'SH'
#!/usr/bin/env bash
[[ $((${OMPI_COMM_WORLD_RANK:-$PMI_RANK} + 1)) != "${OMPI_COMM_WORLD_SIZE:-$PMI_SIZE}" ]] || export SWITCHYARD_ISA=$NARROW
exec "$@"
SH
chmod +x last_narrow.sh

make_text text 60
expect_ok "$switchyard" prepare --domain english=text --tokenizer bytes --valid-fraction 0.2 --output data
small_config <<'INI'
[train]
steps = 3
global_batch = 4
micro_batch = 1
lr = 3e-3
[run]
backend = cpu
log_every = 1
INI
train=("$switchyard" train config.ini)

# The instruction sets of this build, and the one that is taken here.
call "$switchyard" doctor --json
default=$(sed -nE 's/^  "instruction_set": "([a-z0-9]+)".*/\1/p' .out)
mapfile -t all < <(tr -d ' \n' <.out | sed -E 's/.*"instruction_sets":\[([^]]*)\].*/\1/' | tr -d '"' | tr , '\n')
[[ -n $default && ${#all[@]} -ge 1 && " ${all[*]} " == *" $default "* ]] || die "doctor does not say which instruction sets there are"
narrowest=${all[0]}
export NARROW=$narrowest

call "$switchyard" doctor
expect_output "CPU kernels for $(sed 's/ /, /g' <<<"${all[*]}")"
expect_output "kernels   $default on every rank"

wider=""
for isa in "${all[@]}"; do
  # Sets wider than the default do not run here, except one that Intel's CPUs execute slowly.
  if [[ -n $wider && ! ($isa == avx512bf16 && $(</proc/cpuinfo) == *avx512_bf16*) ]]; then
    expect_error "SWITCHYARD_ISA = '$isa': this processor lacks it: set it to $narrowest" \
      env SWITCHYARD_ISA="$isa" "${train[@]}" --run.dir="$isa"
    expect_error "this processor lacks it" env SWITCHYARD_ISA="$isa" "$root/launch/mpirun.sh" 2 "${train[@]}" --run.dir="$isa"
    expect_no_file "$isa"
  else
    expect_ok env SWITCHYARD_ISA="$isa" "${train[@]}" --run.dir="$isa"
    expect_output " cpu ($isa), 1 thread"
  fi
  [[ $isa != "$default" ]] || wider=yes
done
expect_ok "${train[@]}" --run.dir=chosen
expect_output " cpu ($default), 1 thread"
expect_error "SWITCHYARD_ISA = 'avx9000': there is no such instruction set: set it to $narrowest" \
  env SWITCHYARD_ISA=avx9000 "$root/launch/mpirun.sh" 2 "${train[@]}" --run.dir=none
expect_no_file none

# A job uses the narrowest set of its nodes. Its numbers equal those of a job on such nodes only.
losses() { grep -oE '"(loss|grad_norm)":[0-9.e+-]+' "$1/metrics.jsonl"; }
expect_ok start 2 ./last_narrow.sh "${train[@]}" --run.dir=unlike
expect_output " cpu ($narrowest), 1 thread"
SWITCHYARD_ISA=$narrowest expect_ok start 2 "${train[@]}" --run.dir=alike
[[ $(losses unlike | wc -l) -eq 6 && $(losses unlike) == "$(losses alike)" ]] || die "unlike ranks compute something else"
call start 2 ./last_narrow.sh "$switchyard" doctor
expect_output "kernels   $narrowest on every rank"
