#!/usr/bin/env bash
# Tests the job scripts and profiles of launch/sites with launchers that print their arguments. The
# arguments are those of all tests in tests/cli. No batch system and no MPI takes part.
source "$2/tests/cli/lib/lib.sh"
sites=$root/launch/sites

# Launchers print their command line and the threads of a rank, and exit with $CODE.
mkdir bin runs
for name in mpiexec jsrun srun mpirun; do
  cat >bin/$name <<SH
#!/bin/sh
echo "$name \$*"
echo "threads \$OMP_NUM_THREADS bound \$OMP_PROC_BIND"
exit "\$CODE"
SH
done
cat >bin/flux <<'SH'
#!/bin/sh
[ "$1" = resource ] && echo 3 && exit
echo "flux $*"
exit "$CODE"
SH
cat >bin/module <<'SH'
#!/bin/sh
echo "module $*"
SH
chmod +x bin/*
printf 'a\nb\na\n' >nodes
printf '# HOST slots=9\nhost1 slots=2  # two\nhost2 slots=3\n' >hosts

job() {  # SCRIPT [VARIABLE=VALUE...] [-- ARGUMENTS...]
  local script=$sites/$1.sh variables=()
  shift
  while (($# > 0)) && [[ $1 != -- ]]; do
    variables+=("$1")
    shift
  done
  (($# == 0)) || shift
  env -u OMP_NUM_THREADS -u OMP_PROC_BIND -u SWITCHYARD_ROOT PATH="$work/bin:$PATH" SWITCHYARD_LAUNCH="$root/launch" SWITCHYARD="$switchyard" \
    PBS_NODEFILE="$work/nodes" PJM_NODE=5 SWITCHYARD_HOSTS="$work/hosts" CODE=0 SWITCHYARD_RESTART_PAUSES=0 "${variables[@]}" bash "$script" "$@"
}
command_line="$switchyard train --run.max_hours=12.000 config.ini --run.dir=x --run.resume=true"

# Each script has a help, starts the ranks, and passes its arguments to the program.
declare -A expected=(
  [pbs]="mpiexec -n 8 -ppn 4 --depth 16 --cpu-bind depth $command_line"
  [flux]="flux run --nodes=3 --exclusive --tasks-per-node=4 -o cpu-affinity=per-task -o gpu-affinity=off $command_line"
  [lsf]="jsrun -n 2 -r 1 -a 4 -c 32 -g 0 -d packed -b packed:8 $command_line"
  [pjm]="mpiexec -n 20 $command_line"
)
for name in "${!expected[@]}"; do
  expect_ok job "$name" -- --help
  [[ $out == "launch/sites/$name.sh: "* && $out == *CONFIG* && $out != *'#'* ]] || die "the help of $name: $out"
  expect_ok job "$name" -- config.ini --run.dir=x
  [[ ${out%%$'\n'*} == "${expected[$name]}" ]] || die "$name starts another command than ${expected[$name]}"
  expect_ok job "$name" SWITCHYARD_ARGUMENTS="config.ini --run.dir=x"
  [[ ${out%%$'\n'*} == "${expected[$name]}" ]] || die "$name does not take SWITCHYARD_ARGUMENTS"
  call job "$name"
  [[ $code -ne 0 && $err == *SWITCHYARD_ARGUMENTS* ]] || die "$name starts without a configuration: $out $err"
  # The exit code is that of the launcher. After a stop, a message says how to continue.
  expect_exit 3 job "$name" CODE=3 -- config.ini
  [[ $err == *"submit the same job again"* ]] || die "no message: $err"
  expect_exit 1 job "$name" CODE=1 -- config.ini
  [[ $(wc -l <<<"$err") -eq 2 && $err == *"failed twice in the same way: no message"* ]] || die "no second attempt: $err"
done

# A job that the batch system runs again goes on from its newest checkpoint.
make_data 60
small_config </dev/null
mkdir again
echo '{"first_step":1,"job":"77"}' >again/provenance.jsonl
expect_ok job pbs PBS_JOBID=77 -- config.ini --run.dir=again --run.resume_step=3
expect_output "config.ini --run.dir=again --run.resume_step=3 --run.resume=true --run.resume_step=-1"
expect_ok job pbs PBS_JOBID=78 -- config.ini --run.dir=again --run.resume_step=3
[[ $out != *=-1* ]] || die "another job does not go back: $out"
rm config.ini

# The variables replace the values of the script, also those of a profile.
expect_ok job pbs SWITCHYARD_RANKS_PER_NODE=2 SWITCHYARD_CPUS_PER_RANK=32 SWITCHYARD_HOURS=0.5 -- config.ini
expect_output "mpiexec -n 4 -ppn 2 --depth 32 --cpu-bind depth $switchyard train --run.max_hours=0.500 config.ini"
expect_output "threads 32 bound close"
echo 'ranks_per_node=3 cpus_per_rank=5 gpus_per_node=3 binding=(--bind x)' >profile.sh
expect_ok job pbs SWITCHYARD_SITE=./profile.sh -- config.ini
expect_output "mpiexec -n 6 -ppn 3 --depth 5 --bind x "
grep -qx "threads 5 bound " .out || die "ranks with GPUs are bound: $out"
expect_ok job pbs SWITCHYARD_SITE=./profile.sh SWITCHYARD_RANKS_PER_NODE=1 -- config.ini
expect_output "mpiexec -n 2 -ppn 1 --depth 5 "
expect_ok job lsf SWITCHYARD_SITE=./profile.sh SWITCHYARD_NODES=7 -- config.ini
expect_output "jsrun -n 7 -r 1 -a 3 -c 15 -g 3 --bind x "
expect_ok job pjm SWITCHYARD=nowhere -- config.ini
expect_output "mpiexec -n 20 switchyard train "

# ssh: all slots, and no limit unless there is one.
cp "$root"/launch/{mpirun-filter.pl,supervision.sh} bin/
cat >bin/mpirun.sh <<'SH'
#!/bin/sh
echo "mpirun.sh $*"
exit "$CODE"
SH
chmod +x bin/mpirun.sh
cp -r "$sites" bin/sites
expect_ok job ssh -- --help
[[ $out == "launch/sites/ssh.sh: "* ]] || die "the help of ssh: $out"
expect_ok job ssh SWITCHYARD_LAUNCH="$work/bin" -- config.ini --run.dir=x
[[ $out == "mpirun.sh --hostfile $work/hosts 5 $switchyard train config.ini --run.dir=x --run.resume=true" ]] || die "another command"
expect_ok job ssh SWITCHYARD_LAUNCH="$work/bin" SWITCHYARD_HOURS=8 -- config.ini
expect_output "$switchyard train --run.max_hours=8.000 config.ini"
expect_exit 2 job ssh SWITCHYARD_HOSTS=/dev/null -- config.ini
[[ $err == *'has no line "HOST slots=N"'* ]] || die "another message: $err"

# Profiles. Each says where it comes from, that it was not run, and how to submit.
for profile in "$sites"/profiles/*.sh; do
  name=$(basename "$profile" .sh)
  text=$(sed -n '/^#/s/^# *//p' "$profile" | tr '\n' ' ')
  [[ $text == *"From public"*"not run here"* && $text == *"SWITCHYARD_SITE=$name"* ]] || die "the comment of $name"
done
expect_ok job pbs SWITCHYARD_SITE=aurora -- config.ini
expect_output "module load cmake boost hdf5"
expect_output "mpiexec -n 24 -ppn 12 --depth 8 --cpu-bind list:1-8:9-16:"
slurm() {  # PROFILE
  env -u SLURM_ARRAY_TASK_ID PATH="$work/bin:$PATH" SLURM_SUBMIT_DIR="$work" SLURM_CPUS_PER_TASK=8 SLURM_GPUS_ON_NODE=4 CODE=0 SWITCHYARD="$switchyard" \
    SWITCHYARD_LAUNCH="$root/launch" SWITCHYARD_SITE="$1" bash "$root/launch/slurm.sbatch" config.ini --run.dir=x
}
options="--cpu-bind=cores --distribution=block:block --kill-on-bad-exit=0 --wait=30 --gpu-bind=none $switchyard train config.ini --run.dir=x"
declare -A mpi=([alps]="" [frontier]="" [jupiter]="" [leonardo]="--mpi=pmix " [lumi]="" [marenostrum5]="--mpi=pmix " [perlmutter]="")
for name in "${!mpi[@]}"; do
  expect_ok slurm "$name"
  expect_output "srun ${mpi[$name]}$options"
done
[[ $(printf '%s\n' "${!mpi[@]}" aurora | sort) == "$(basename -s .sh "$sites"/profiles/*.sh)" ]] || die "a profile is not tested"
expect_ok slurm perlmutter
expect_output "threads 16 "  # its 32 logical CPUs are 16 cores
call slurm nowhere
[[ $code -ne 0 && $err == *"profiles/nowhere.sh"* && -z $out ]] || die "an unknown profile: $out $err"
