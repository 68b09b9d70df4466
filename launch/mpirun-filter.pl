#!/usr/bin/env perl
# launch/mpirun-filter.pl ID: filter of mpirun's standard error, which launch/mpirun.sh starts.
# After exit code 2 of the ranks (bad input), mpirun prints eleven lines of its own. The filter
# drops these lines, and no other text, if an error of the program precedes them. It forwards
# everything else at once.
# At the end launch/mpirun.sh writes the exit code to it: a zero byte, ID, and the code.
use strict;
use warnings;

my $rule = qr/^-{20,}$/;
my @block = ($rule, qr/^Primary job +terminated normally, but \d+ process(es)? returned$/,
             qr/^a non-zero exit code\. Per user-direction, the job has been aborted\.$/, $rule, $rule,
             qr/^\S+ detected that one or more processes exited with non-zero status, thus causing$/,
             qr/^the job to be terminated\. The first process to do so was:$/, qr/^$/,
             qr/^  Process name: \[\[\d+,\d+\],\d+\]$/, qr/^  Exit code: +2$/, $rule, qr/(?!)/);
my ($text, $code, $error_seen, $in_line, @held) = ("", -1, 0, 0);
$| = 1;
sub release { print splice @held; }
while (1) {
  vec(my $ready, 0, 1) = 1;
  # A single line of dashes may be of the program: the next line of mpirun comes with it.
  if (select($ready, undef, undef, @held == 1 || length $text ? 1 : undef) == 0) {
    release();
    $in_line = 1 if length $text;
    print $text;
    $text = "";
    next;
  }
  my $bytes = sysread STDIN, $text, 65536, length $text;
  next if !defined $bytes;
  last if $bytes == 0;
  $code = $1 if $text =~ s/\x{00}$ARGV[0] (\d+)\z//;
  while ($text =~ s/^([^\n]*\n)//) {
    my $line = $1;
    release() if $in_line || $line !~ $block[@held];
    if ($error_seen && !$in_line && $line =~ $block[@held]) {
      push @held, $line;
    } else {
      $error_seen ||= $line =~ /(^|\r|\e\[K)switchyard: (?!warning: )/;
      print $line;
    }
    $in_line = 0;
  }
  if (length $text && ($in_line || !$error_seen)) {
    print $text;
    ($text, $in_line) = ("", 1);
  }
}
release() unless $code == 2 && (@held == 4 || @held == 11);
print $text;
