#!/usr/bin/env bash
# Tries the README's two commands on a bare Debian 12, which has only the packages of debootstrap's
# minbase.
#   tests/bare.sh [OPTIONS] [DIR [COMMAND ARGUMENT...]]
#
# DIR becomes the root folder of that Debian. If it is from an earlier trial, it is used again.
# Without DIR, a temporary folder is made and removed. COMMAND, run in the source tree, replaces
# both commands.
#   --user         runs the commands as a user with sudo instead of root
#   --ccache DIR   keeps the compiler's cache in DIR, so that the next trial compiles less
#   --mirror URL   takes packages from this mirror of Debian
#
# It needs root, debootstrap, git, and the time of both commands from nothing, so tests/run.sh does
# not call it. The source tree is a clone of HEAD, without changes that are not committed.
#
# Exit code 0: every command succeeded; 1: one failed; 2: the trial could not be made.
set -euo pipefail
die() {
  echo "tests/bare.sh: $1" >&2
  exit 2
}

as_user=
cache=
mirror=
while [[ ${1:-} == --* ]]; do
  case $1 in
    --user) as_user=yes ;;
    --ccache) cache=${2:?--ccache names a folder} && shift ;;
    --mirror) mirror=${2:?--mirror names a URL} && shift ;;
    --help) sed -n '2,/^set/s/^# \?//p' "$0" && exit 0 ;;
    *) die "unknown option $1: see --help" ;;
  esac
  shift
done
[[ $(id -u) -eq 0 ]] || die "run it as root: it makes a root folder, and mounts file systems"
source=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# Mounts and processes are in namespaces, which end with this script even if a signal kills it.
if [[ ${SWITCHYARD_BARE:-} != inside ]]; then
  for program in debootstrap git unshare; do command -v $program >/dev/null || die "$program is missing: install it"; done
  made=
  if [[ $# -gt 0 ]]; then
    dir=$1
    shift
  else
    dir=$(mktemp -d)
    made=$dir
  fi
  [[ ! -e $dir || -e $dir/etc/debian_version || -z $(ls -A "$dir") ]] || die "$dir holds something else: name another folder"
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  trap '[[ -z $made ]] || rm -rf --one-file-system "$made"' EXIT
  trap 'kill -KILL $!; wait $! || true; exit 1' INT TERM HUP
  options=(${as_user:+--user} ${cache:+--ccache "$cache"} ${mirror:+--mirror "$mirror"})
  SWITCHYARD_BARE=inside setpriv --pdeathsig KILL \
    unshare --mount --propagation private --pid --fork --kill-child "$0" "${options[@]}" "$dir" "$@" &
  code=0
  wait $! || code=$?
  exit "$code"
fi

dir=$1
shift
if [[ ! -e $dir/etc/debian_version ]]; then
  echo "bare.sh: a bare Debian 12 in $dir"
  # shellcheck disable=SC2086
  debootstrap --variant=minbase bookworm "$dir" $mirror >"$dir.log" 2>&1 ||
    { tail "$dir.log" >&2 && die "debootstrap failed"; }
  rm "$dir.log"
fi
mount --bind "$dir" "$dir" # the root folder is then a mount point, as on a machine
mount -t proc proc "$dir/proc"
mount --rbind /sys "$dir/sys"
mount --rbind /dev "$dir/dev"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$dir/dev/pts"
mount -t tmpfs -o mode=1777 tmpfs "$dir/dev/shm"
cp /etc/resolv.conf "$dir/etc/resolv.conf"
printf '127.0.0.1 localhost\n127.0.1.1 %s\n' "$(uname -n)" >"$dir/etc/hosts"
# The settings with which this machine reaches a mirror: proxies, time-outs, checks of dates.
apt-config dump Acquire | grep -vE '^Acquire::(IndexTargets|Languages|Changelogs)' \
  >"$dir/etc/apt/apt.conf.d/99host" || true

# The environment of a login, without the variables of this shell.
environment=(LANG=C.UTF-8 TERM=dumb)
user=root
home=/root
path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [[ -n $as_user ]]; then
  user=trial
  home=/home/trial
  path=/usr/local/bin:/usr/bin:/bin
  inside() { chroot "$dir" env -i "PATH=/usr/sbin:/usr/bin:/sbin:/bin" DEBIAN_FRONTEND=noninteractive "$@"; }
  inside id $user >/dev/null 2>&1 || inside useradd --create-home --shell /bin/bash $user
  if [[ ! -e $dir/usr/bin/sudo ]]; then
    inside apt-get update -qq
    inside apt-get install -y -qq --no-install-recommends sudo >/dev/null 2>&1
  fi
  echo "$user ALL=(ALL) NOPASSWD: ALL" >"$dir/etc/sudoers.d/$user"
fi
if [[ -n $cache ]]; then
  mkdir -p "$dir/ccache" "$cache"
  mount --bind "$cache" "$dir/ccache"
  environment+=(CCACHE_DIR=/ccache "CCACHE_BASEDIR=$home/switchyard" CCACHE_NOHASHDIR=1
    CCACHE_COMPILERCHECK=content CCACHE_UMASK=000)
fi
rm -rf "$dir$home/switchyard"
git clone -q --depth 1 "file://$source" "$dir$home/switchyard"
chroot "$dir" chown -R $user: "$home/switchyard"
if [[ -n $cache ]]; then chroot "$dir" chown -R $user: /ccache; fi

# Runs a command as the user in the source tree, and prints how long it took.
failed=0
try() {
  local started=$SECONDS code=0
  chroot --userspec=$user "$dir" env -i HOME=$home USER=$user LOGNAME=$user PATH=$path "${environment[@]}" \
    sh -c 'cd ~/switchyard && exec "$@"' - "$@" </dev/null || code=$?
  ((code == 0)) || failed=1
  echo "bare.sh: $* took $((SECONDS - started)) s as $user$( ((code == 0)) || echo ", and failed with exit code $code")"
}
if [[ $# -gt 0 ]]; then
  try "$@"
else
  try launch/quickstart.sh
  try tests/run.sh
fi
exit $failed
