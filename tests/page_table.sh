#!/usr/bin/env bash
# tests/page_table.sh PAGE: puts the table of standard input between the lines <!-- table --> and
# <!-- end --> of a page.
set -euo pipefail
table=$(cat)
[[ -n $table ]] || exit 1
TABLE=$table perl -0pi -e 's/(<!-- table -->\n).*(<!-- end -->)/$1$ENV{TABLE}\n$2/s' "${1:?it needs the path of a page}"
