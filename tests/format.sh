#!/usr/bin/env bash
# Checks the layout of C++ sources with clang-format 14, and scripts with shellcheck.
# Exit code 1: a source has another layout, or a script has a warning; 77: a program is missing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
git rev-parse --git-dir >/dev/null 2>&1 || { echo "this is no git work tree"; exit 77; }
checked=0
failed=0
if clang-format --version 2>/dev/null | grep -q ' 14\.'; then
  git ls-files -z '*.h' '*.cpp' '*.cu' '*.cuh' ':!tests/fixtures' | xargs -0 clang-format --dry-run -Werror || failed=1
  checked=$((checked + 1))
else
  echo "clang-format 14 is missing: launch/install-deps.sh --dev installs it"
fi
if command -v shellcheck >/dev/null; then
  git ls-files -z '*.sh' '*.sbatch' .ci/run | xargs -0 shellcheck -S warning || failed=1
  checked=$((checked + 1))
else
  echo "shellcheck is missing: launch/install-deps.sh --dev installs it"
fi
((failed == 0)) || exit 1
((checked == 2)) || exit 77
