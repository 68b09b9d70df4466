#!/usr/bin/env bash
# Tests that the reference pages are up to date. These commands write them again:
#   build/switchyard help --markdown >docs/reference/cli.md
#   build/switchyard help config --markdown >docs/reference/config.md
source "$2/tests/cli/lib/lib.sh"

expect_ok "$switchyard" help --markdown
diff "$root/docs/reference/cli.md" - <<<"$out" || die "docs/reference/cli.md is out of date: see the head of this test"
expect_ok "$switchyard" help config --markdown
diff "$root/docs/reference/config.md" - <<<"$out" || die "docs/reference/config.md is out of date: see the head of this test"

# The manual page has every command, and no unintended roff requests.
expect_ok "$switchyard" help --man
for command in prepare train experts version; do
  grep -q "^\.SS $command\$" <<<"$out" || die "the manual page lacks $command"
done
requests=$(grep -oE '^\.[A-Za-z]*' <<<"$out" | sort -u | tr '\n' ' ')
[[ $requests == ".B .I .PP .SH .SS .TH .TP .br " ]] || die "requests of the manual page: $requests"
if command -v groff >/dev/null; then
  warnings=$(groff -man -Tutf8 -ww -z <<<"$out" 2>&1)
  [[ -z $warnings ]] || die "groff: $warnings"
fi
