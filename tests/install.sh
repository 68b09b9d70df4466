#!/usr/bin/env bash
# tests/install.sh BINARY ROOT: checks the installed files, the Debian package and the source
# tarball.
#
# The installed program must work in any folder, because a package holds the same files.
source "$2/tests/cli/lib/lib.sh"
build=$(dirname "$switchyard")
expect_ok cmake --install "$build" --prefix "$work/usr"
bin=$work/usr/bin/switchyard
version=$(sed -nE 's/^project\(switchyard VERSION ([0-9.]+).*/\1/p' "$root/CMakeLists.txt")
for argument in version --version; do
  expect_ok "$bin" $argument
  [[ $out == "switchyard $version"$'\n'* ]] || die "another version"
done
expect_ok bash "$root/tests/runpath.sh" "$work/usr"
share=$work/usr/share
expect_file "$share/switchyard/configs/quickstart.ini" "$share/switchyard/configs/models/mixtral-8x7b.ini" \
  "$share/switchyard/launch/mpirun-filter.pl" "$share/switchyard/launch/slurm.sbatch" "$share/switchyard/launch/supervision.sh" \
  "$share/doc/switchyard/README.md"
for picture in $(grep -oE '\]\(docs/[^)]*' "$share/doc/switchyard/README.md" | cut -c3- | sed "s|#.*||"); do
  expect_file "$share/doc/switchyard/$picture"
done
expect_ok "$bin" inspect --config "$share/switchyard/configs/models/mixtral-8x7b.ini"
expect_ok env OMP_NUM_THREADS=1 "$share/switchyard/launch/mpirun.sh" 2 "$bin" version
# The installed launcher has its filter, through a link too: an input error is one line.
ln -s "$share/switchyard/launch/mpirun.sh" "$work/linked"
expect_exit 2 env OMP_NUM_THREADS=1 "$work/linked" 2 "$bin" train nowhere.ini
[[ $(wc -l <"$work/.err") -eq 1 ]] || die "more than the error: $err"
expect_exit 2 "$share/switchyard/launch/supervise.sh" 2 "$bin" train nowhere.ini
[[ $err == *"cannot read the configuration nowhere.ini"* ]] || die "another message"
# The installed completion works, and the other shells have theirs.
expect_file "$share/man/man1/switchyard.1" "$share/zsh/site-functions/_switchyard" "$share/fish/vendor_completions.d/switchyard.fish"
complete_words() {
  # shellcheck disable=SC1091
  source "$share/bash-completion/completions/switchyard"
  COMP_WORDS=("$bin" "$@") COMP_CWORD=$#
  _switchyard 2>/dev/null  # compopt needs an interactive shell
  echo "${COMPREPLY[*]}"
}
[[ $(complete_words tra) == train ]] || die "tra is not completed"
[[ $(complete_words train --train.warm) == --train.warmup= ]] || die "a setting is not completed"

# The modulefile and the CMake package lead to this installation.
expect_file "$share/switchyard/launch/sites/pbs.sh" "$share/switchyard/launch/sites/profiles/alps.sh"
grep -qxF "set prefix \"$work/usr\"" "$share/switchyard/modulefiles/switchyard/$version" || die "the modulefile has another prefix"
mkdir "$work/user"
cat >"$work/user/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(user NONE)
find_package(switchyard REQUIRED)
get_target_property(program switchyard::switchyard IMPORTED_LOCATION)
message(STATUS "found ${program} ${switchyard_VERSION}")
CMAKE
expect_ok cmake -S "$work/user" -B "$work/user/build" -DCMAKE_PREFIX_PATH="$work/usr"
expect_output "found $bin $version"

# The source tarball has the tree, and no files of builds and runs.
expect_ok cpack --config "$build/CPackSourceConfig.cmake" -B "$work/source"
expect_ok tar -tzf "$work/source/switchyard-$version.tar.gz"
expect_output "switchyard-$version/src/cli/main.cpp"
files=$(grep -E "^switchyard-$version/(\.git/|build|runs/|data/)" <<<"$out" || true)
[[ -z $files ]] || die "the source tarball has $files"
# Without git, a build of the tarball knows the commit.
expect_ok "$switchyard" version --json
commit=$(sed -nE 's/.*"commit": "([0-9a-f]+)".*/\1/p' <<<"$out")
expect_ok tar -xzf "$work/source/switchyard-$version.tar.gz" -C "$work/source"
expect_ok cmake -DROOT="$work/source/switchyard-$version" -DVERSION=1 -DOUTPUT="$work/source/build_info.cpp" \
  -P "$root/cmake/build_info.cmake"
[[ -z $commit ]] || grep -qF ".commit = \"$commit\"" "$work/source/build_info.cpp" || die "the source tarball has no commit $commit"

cd "$work"
expect_ok cpack --config "$build/CPackConfig.cmake" -B "$work/package"
expect_ok dpkg-deb --contents package/switchyard_*.deb
expect_output "./usr/bin/switchyard"
expect_output "./usr/share/zsh/vendor-completions/_switchyard"
expect_output "./usr/share/switchyard/modulefiles/switchyard/$version"
expect_ok dpkg-deb --field package/switchyard_*.deb Depends
[[ $mpi == mpich ]] && launcher_packages=(mpich libmpich12) || launcher_packages=(openmpi-bin libopenmpi)
for package in "${launcher_packages[@]}" libhdf5 libgomp1; do expect_output "$package"; done
