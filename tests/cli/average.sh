#!/usr/bin/env bash
# Tests export --average, and train.moment_dtype with a resume from the other type.
source "$2/tests/cli/lib/lib.sh"

make_data 60 --valid-fraction 0.2
small_config <<'INI'
[train]
steps = 9
global_batch = 8
micro_batch = 2
lr = 1e-2
warmup = 2
[run]
backend = cpu
checkpoint_every = 2
keep = 4
INI
expect_ok "$switchyard" train config.ini --run.dir=run --quiet

# The checkpoints of steps 4, 6, 8 and 9 are there.
expect_ok "$switchyard" export run one --dtype f32
expect_ok "$switchyard" export run mean --dtype f32 --average 3
expect_output "the mean of 3 checkpoints"
expect_ok ranks 3 export run mean3 --dtype f32 --average 3 --quiet
cmp mean/model.safetensors mean3/model.safetensors
for step in 6 8; do expect_ok "$switchyard" export run/checkpoints/step-0000000$step at$step --dtype f32 --quiet; done
# Compares the numbers of MEAN, all in f32, with the means of those of the other folders.
cat >mean.pl <<'PERL'
sub read_folder {
  open my $file, "<:raw", "$_[0]/model.safetensors" or die "$_[0]: $!";
  my $data = do { local $/; <$file> };
  my $size = unpack "Q<", $data;
  my $header = substr $data, 8, $size;
  $header =~ s/"__metadata__":\{[^}]*\},?//;
  $header =~ s/\s+$//;
  return $header, unpack "f<*", substr $data, 8 + $size;
}
my ($header, @mean) = read_folder(shift);
die "too few numbers" if @mean < 1000;
my @all = map { [read_folder($_)] } @ARGV;
for (@all) { die "other tensors" if shift @$_ ne $header or @$_ != @mean }
for my $i (0 .. $#mean) {
  my $sum = 0;
  $sum += $_->[$i] for @all;
  my $want = unpack "f<", pack "f<", $sum / @all;
  die "element $i: $mean[$i], not $want" if $mean[$i] != $want;
}
PERL
perl mean.pl mean at6 at8 one || die "not the mean of steps 6, 8 and 9"
expect_error "fewer than the 5 of --average" "$switchyard" export run none --average 5
expect_error "--average must be at least 1" "$switchyard" export run none --average 0
expect_no_file none

# State in bf16 resumes bit for bit, on the type of the checkpoint and of another one.
expect_ok "$switchyard" train config.ini --run.dir=low --train.moment_dtype=bf16 --run.keep=0 --quiet
expect_exit 1 "$switchyard" diff run low
cp -r low again
rm -r again/checkpoints/step-0000000[89]
expect_ok "$switchyard" train low/config.ini --run.dir=again --run.resume=true --quiet
expect_ok "$switchyard" diff low again
rm -r run/checkpoints/step-0000000[89]
expect_ok "$switchyard" train config.ini --run.dir=run --run.resume=true --train.moment_dtype=bf16 --quiet
expect_exit 1 "$switchyard" diff run low
