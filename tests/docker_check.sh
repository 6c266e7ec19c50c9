#!/usr/bin/env bash
# Builds the CPU image and runs the demo in it, both with buildah in a chroot, so that no engine is needed. Needs root.
#   BASE           the image to build on (default: a small Debian with Python, made with debootstrap)
#   BUILD_OPTIONS  more options for `buildah build`, such as a mounted pip.conf
#   STORAGE        options for every `buildah`, such as --storage-driver vfs
#   KEEP           set: the images stay
set -euo pipefail
cd "$(dirname "$0")/.."

IMAGE=localhost/mlperf-llama31:check
CLIENT=localhost/mlperf-llama31-client:check
MADE_BASE=localhost/mlperf-llama31-base:check
NOBODY=12345 # a user that neither this machine nor the image knows
PLANTED=hf_planted_where_no_image_may_have_it
REVISION=$(git describe --always --dirty --abbrev=12 --exclude='*')
container=

stop() { echo "docker-check: $*" >&2; exit 1; }
passed() { echo "passed: $*"; }
# shellcheck disable=SC2086 # options are words
with_buildah() { buildah ${STORAGE:-} "$@"; }
in_image() { with_buildah run --isolation chroot "$@"; }

tools=(buildah)
[ -n "${BASE:-}" ] || tools+=(debootstrap)
for tool in "${tools[@]}"; do
  command -v "$tool" >/dev/null || stop "$tool is not installed"
done
[ "$(id -u)" = 0 ] || stop "needs root"

place=$(mktemp -d)
clean() {
  [ -z "$container" ] || with_buildah rm "$container" >/dev/null 2>&1 || true
  rm -rf "$place"
  [ -n "${KEEP:-}" ] || with_buildah rmi -f "$IMAGE" "$CLIENT" "$MADE_BASE" >/dev/null 2>&1 || true
}
trap clean EXIT

if [ -z "${BASE:-}" ]; then
  debootstrap --variant=minbase --include=python3-dev,python3-venv bookworm "$place/base" >"$place/base.log" \
    || stop "debootstrap failed: $(tail -n 1 "$place/base.log")"
  container=$(with_buildah from scratch)
  with_buildah add -q "$container" "$place/base" / >/dev/null
  with_buildah commit -q --rm "$container" "$MADE_BASE" >/dev/null
  container=
  BASE=$MADE_BASE
  rm -rf "$place/base"
fi

# What git tracks, and beside it what a work tree may hold and an image may not.
mkdir -p "$place/context/.git"
git ls-files -z -- ':!third_party' | tar -c --null -T - | tar -C "$place/context" -x
for secret in .env .git/config results/old.txt; do
  echo "HF_TOKEN=$PLANTED" >"$place/context/$secret"
done
# shellcheck disable=SC2086 # options are words
with_buildah build --isolation chroot --no-cache --force-rm --build-arg BASE="$BASE" --build-arg REVISION="$REVISION" \
  --build-arg REQUIREMENTS=requirements-cpu.txt ${BUILD_OPTIONS:-} -t "$IMAGE" "$place/context"
passed "the CPU image is built"

config=$(with_buildah inspect --type image --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}' "$IMAGE")
[ "$config" = "1000:1000 [tini --] [python run.py --help]" ] || stop "not the user or the commands that were meant: $config"
passed "$config"
! with_buildah inspect --type image "$IMAGE" | grep -q HF_TOKEN || stop "the image names a token"

container=$(with_buildah from --pull-never "$IMAGE")
[[ $(in_image "$container" -- tini -- python run.py --help) == *--scenario* ]] || stop "run.py --help does not show the flags"
passed "python run.py --help"

found=$(in_image --user 0 "$container" -- sh -c "find / -xdev -name .git; grep -rIl $PLANTED /app /opt /tmp /cache || true")
[ -z "$found" ] || stop "these do not belong into an image: $found"
passed "no token, no .git"

mkdir "$place/results"
chown "$NOBODY:$NOBODY" "$place/results"
chmod 755 "$place"
in_image --user "$NOBODY:$NOBODY" -v "$place/results:/app/results" "$container" -- \
  tini -- python run.py --model demo --category datacenter --scenario offline --mode both
grep -q '"complete"' "$place/results/latest/status.json" || stop "the demo did not finish"
grep -q "\"$REVISION\"" "$place/results/latest/config.json" || stop "the run does not name revision $REVISION"
others=$(find "$place/results" ! -user "$NOBODY")
[ -z "$others" ] || stop "these results do not belong to the caller: $others"
passed "the demo, offline; its $(find "$place/results" -type f | wc -l) files belong to the caller"

# The client: as a user that nobody knows, with a read-only root and no capabilities, as deploy/k8s/job.yaml runs it.
# shellcheck disable=SC2086 # options are words
with_buildah build --isolation chroot --no-cache --force-rm --target client --build-arg BASE="$BASE" ${BUILD_OPTIONS:-} \
  -t "$CLIENT" "$place/context"
with_buildah rm "$container" >/dev/null
container=$(with_buildah from --pull-never "$CLIENT")
root=$(with_buildah mount "$container")
passed "the client image is built: $(du -sm "$root" | cut -f1) MB"
unshare --mount bash -c "
  mount --bind '$root' '$root' && mount -o remount,ro,bind '$root'
  for volume in tmp cache app/results; do mount -t tmpfs -o mode=1777 tmpfs '$root'/\$volume; done
  mount -t proc proc '$root/proc' && mount --rbind /dev '$root/dev'
  chroot '$root' setpriv --reuid $NOBODY --regid $NOBODY --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
    env -i PATH=/opt/venv/bin:/usr/bin:/bin HOME=/tmp XDG_CACHE_HOME=/cache MPLCONFIGDIR=/tmp sh -c '
      cd /app && ! touch /app/written 2>/dev/null \
        && python run.py --model demo --backend echo --mode performance --min-duration 2 && grep -q complete results/latest/status.json'
" || stop "the client does not run with a read-only root"
passed "the client as user $NOBODY, with a read-only root and no capabilities"
