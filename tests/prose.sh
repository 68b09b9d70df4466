#!/usr/bin/env bash
# tests/prose.sh [--warn] [FILE...]: checks the words of the code and of the documentation
# (docs/contributing/style.md).
#
# Without FILE it checks every tracked source, script, configuration and page. It prints
# FILE:LINE: RULE: TEXT for each offence. The rules:
#   long      a sentence has more than 30 words (more than 25: a warning, printed with --warn)
#   headless  a sentence starts with What, Who, Whose, Of, Those, That, Which or Where, and is no
#             question
#   wide      a line of a comment or of prose has more than 100 columns
#   banned    an identifier has a subword that is not a name of the field: see `banned` below
# Exit code 1: there is an offence.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export LC_ALL=C.UTF-8
files=()
options=()
for argument in "$@"; do
  case $argument in
    --*) options+=("$argument") ;;
    *) files+=("$argument") ;;
  esac
done
if ((${#files[@]} == 0)); then
  patterns=('*.h' '*.cpp' '*.cu' '*.cuh' '*.in' '*.sh' '*.sbatch' '*.cmake' '*CMakeLists.txt' '*.ini' '*.md')
  # Without git, what lies in the folders of the source tree.
  mapfile -t files < <(git ls-files "${patterns[@]}" 2>/dev/null || find benchmarks cmake configs dist docs kernels launch src tests ./*.* -type f | grep -E '\.(h|cpp|cu|cuh|in|sh|sbatch|cmake|ini|md)$|CMakeLists\.txt$' | sed 's#^\./##')
fi
exec perl - "${options[@]}" "${files[@]}" <<'PERL'
use strict;
use warnings;
use utf8;

binmode STDOUT, ":utf8";

my %option;
my @files;
for (@ARGV) { if (/^--/) { $option{$_} = 1 } else { push @files, $_ } }

# Raw logs and generated pages, and the files that quote offences.
my $exempt = qr{^(tests/bench/RESULTS\.md|tests/cuda/RESOURCES\.md|tests/bench/results/|tests/fixtures/|tests/mutants\.txt|docs/reference/(cli|config)\.md)};

# Subwords of identifiers that the style forbids as names.
my %banned = map { $_ => 1 } qw(place places part parts piece pieces room told said given taken kept mate mates word words turn turns);

# Identifiers of the standard library, of POSIX and of other libraries that have such a subword.
my $foreign = qr{^(placeholders?|emplace|partial|room_for|in_place|MPI_IN_PLACE|SentencePiece\w*|IdToPiece|PieceToId|GetPieceSize|StringPiece|OnTestPartResult|TestPartResult|single_word)$};

my (%offences, @warnings);
sub offence {
  my ($file, $line, $rule, $text) = @_;
  $text = substr($text, 0, 117) . "..." if length $text > 120;
  push @{$offences{$file}}, "$file:$line: $rule: $text";
}

# Checks the sentences of a block of prose that begins in a line of a file.
sub check_prose {
  my ($file, $line, $text) = @_;
  $text =~ s/(?<=[.!?] )`[^`]*`/Code/g;   # quoted code is one word, which may begin a sentence
  $text =~ s/^`[^`]*`/Code/;
  $text =~ s/`[^`]*`/code/g;
  $text =~ s{\bhttps?://\S+}{link}g;
  $text =~ s/\[([^\]]*)\]\([^)]*\)/$1/g;  # the text of a link
  $text =~ s/\s+/ /g;
  # A sentence ends before a capital, a digit or a quotation; an abbreviation does not end one.
  for my $sentence (split /(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)(?<!vs\.)["')]*\s+(?=[^a-z])/, $text) {
    $sentence =~ s/^\s+|\s+$//g;
    my $words = () = $sentence =~ /(?<![\w.-])[A-Za-z][\w'-]*/g;
    if ($words > 30) { offence($file, $line, "long ($words)", $sentence) }
    elsif ($words > 25) { push @warnings, "$file:$line: long ($words): $sentence" }
    my $start = $sentence;
    $start =~ s/^(?:[\w.\[\], *()-]{1,40}: )//;  # "name: [T, D] ..." of a comment
    if ($start =~ /^(What|Who|Whose|Of|Those|That|Which|Where)\b/ && $sentence !~ /\?["')]*$/) {
      offence($file, $line, "headless", $start);
    }
  }
}

sub check_width {
  my ($file, $line, $text) = @_;
  return if length $text <= 100 || $text =~ m{https?://};
  offence($file, $line, "wide (" . length($text) . ")", $text);
}

sub check_identifiers {
  my ($file, $line, $code) = @_;
  $code =~ s/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'//g;
  while ($code =~ /\b([A-Za-z_]\w*)\b/g) {
    my $name = $1;
    next if $name =~ $foreign;
    (my $rest = $name) =~ s/in_place|InPlace|whole_words//;  # terms of the field
    for my $sub (split /_|(?<=[a-z0-9])(?=[A-Z])/, $rest) {
      if ($banned{lc $sub}) { offence($file, $line, "banned", $name); last }
    }
  }
}

# Splits a line of code into code and comment. A marker in a string is not a comment.
sub split_comment {
  my ($text, $marker) = @_;
  # In scripts a comment begins the line or follows a blank. A # in a word is none.
  if ($marker eq "#") {
    return $text =~ /^((?:[^"']|"(?:[^"\\]|\\.)*"|'[^']*')*?(?:^|\s))#(?=\s|$)/ ? ($1, substr($text, $+[0]), length $1) : ($text, undef, -1);
  }
  my $position = 0;
  while ($text =~ /\G((?:[^"'\/#\\]|\\.|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|['\/#\\](?!\/))*?)($marker)/gc) {
    return (substr($text, 0, $+[1]), substr($text, $+[0]), $+[1]);
  }
  return ($text, undef, -1);
}

sub check_code {
  my ($file, $marker, $lines) = @_;
  my ($block, $first, $column) = ("", 0, -1);
  my $flush = sub { check_prose($file, $first, $block) if $block =~ /\w/; $block = "" };
  my $number = 0;
  for my $text (@$lines) {
    ++$number;
    next if $text =~ /^#(!|SBATCH|#SBATCH)/;
    my ($code, $comment, $at) = split_comment($text, $marker);
    if (defined $comment) {
      check_width($file, $number, $text);
      my $alone = $code !~ /\S/;
      $comment =~ s/^\s?//;
      # An empty comment line, and a row of a table or a definition, begin a new block.
      $flush->() if !$alone || $at != $column || $comment !~ /\S/ || $comment =~ /^\s{2,}/ || $comment =~ /^\s*[-|*=]/;
      $first = $number if $block eq "";
      $block .= " $comment";
      $column = $at;
    } else {
      $flush->();
      $column = -1;
    }
    check_identifiers($file, $number, $code) if $marker eq "//";
  }
  $flush->();
}

sub check_page {
  my ($file, $lines) = @_;
  my ($block, $first, $fenced, $number) = ("", 0, 0, 0);
  my $flush = sub { check_prose($file, $first, $block) if $block =~ /\w/; $block = "" };
  for my $text (@$lines) {
    ++$number;
    if ($text =~ /^\s*```/) { $flush->(); $fenced = !$fenced; next }
    if ($fenced || $text =~ /^( {4}|\t)/ && $block eq "" || $text =~ /^\s*\|/ || $text =~ /^#/ || $text !~ /\S/ || $text =~ /^\s*(<|!\[)/) {
      $flush->();
      next;
    }
    check_width($file, $number, $text);
    $flush->() if $text =~ s/^\s*([-*]|\d+\.)\s+//;
    $first = $number if $block eq "";
    $block .= " $text";
  }
  $flush->();
}

for my $file (@files) {
  next if $file =~ $exempt;
  open my $in, "<:utf8", $file or die "prose.sh: cannot read $file: $!\n";
  chomp(my @lines = <$in>);
  if ($file =~ /\.md$/) { check_page($file, \@lines) }
  elsif ($file =~ /\.(h|cpp|cu|cuh|in)$/) { check_code($file, "//", \@lines) }
  else { check_code($file, "#", \@lines) }
}

my @found = map { @{$offences{$_}} } sort keys %offences;
print "$_\n" for @found;
if ($option{"--warn"}) { print "$_\n" for @warnings }
exit(@found ? 1 : 0);
PERL
