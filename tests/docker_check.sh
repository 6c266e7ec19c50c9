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
  --build-arg REQUIREMENTS=requirements/cpu.txt ${BUILD_OPTIONS:-} -t "$IMAGE" "$place/context"
passed "the CPU image is built"

config=$(with_buildah inspect --type image --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}' "$IMAGE")
[ "$config" = "1000:1000 [tini --] [python run.py --help]" ] || stop "not the user or the commands that were meant: $config"
passed "$config"
[[ $(with_buildah inspect --type image "$IMAGE") != *HF_TOKEN* ]] || stop "the image names a token"

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

grep -q 'popovertarget="t-' "$place/results/latest/report.html" || stop "the page explains no term"
passed "its page explains its terms"

# What a Job of deploy/k8s says: its settings into a folder, without those named; its command, a word a line.
read_job() {
  mkdir -p "$place/$1"
  in_image -v "$PWD/deploy/k8s:/k8s:ro" -v "$place/$1:/written" --user 0 "$container" -- python -c '
import sys, yaml
kinds = {each["kind"]: each for each in yaml.safe_load_all(open("/k8s/" + sys.argv[1] + ".yaml"))}
settings = yaml.safe_load(kinds["ConfigMap"]["data"]["run.yaml"])
for name in sys.argv[2:]:
    del settings[name]
yaml.safe_dump(settings, open("/written/run.yaml", "w"))
print(*kinds["Job"]["spec"]["template"]["spec"]["containers"][0]["args"], sep="\n")
' "$@"
}

# As a pod of the restricted profile: ROOT IMAGE USER CONFIG WORD... with a read-only root, no capabilities, and volumes
# that are folders with the user's group.
as_pod() {
  local root=$1 image=$2 user=$3 config=$4 environment volumes
  shift 4
  volumes=$place/volumes-$(basename "$config")
  mkdir -p "$volumes"/{tmp,cache,results} "$root/config"
  chown ":$user" "$volumes"/*
  chmod 2775 "$volumes"/*
  mapfile -t environment < <(with_buildah inspect --type image --format '{{range .OCIv1.Config.Env}}{{println .}}{{end}}' "$image" | grep .)
  # shellcheck disable=SC2016 # the inner shell's
  unshare --mount bash -euc '
    root=$1 volumes=$2 user=$3 config=$4
    shift 4
    mount --bind "$root" "$root"
    mount -o remount,ro,bind "$root"
    for volume in tmp cache results; do
      target=$root/${volume/results/app/results}
      mount --bind "$volumes/$volume" "$target"
    done
    mount --bind "$config" "$root/config"
    mount -t proc proc "$root/proc"
    mount --rbind /sys "$root/sys"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs -o mode=1777,size=8g tmpfs "$root/dev/shm"
    exec chroot "$root" setpriv --reuid "$user" --regid "$user" --clear-groups --bounding-set=-all --inh-caps=-all \
      --no-new-privs env -i --chdir=/app "$@"
  ' - "$root" "$volumes" "$user" "$config" "${environment[@]}" tini -s -- \
    sh -c 'if touch /app/written 2>/dev/null; then echo "the root can be written to" >&2; exit 1; fi; exec "$@"' - "$@"
  grep -q '"complete"' "$volumes/results/latest/status.json" || stop "the run of $(basename "$config") did not finish"
}

# shellcheck disable=SC2016 # a template's own names
labels=$(with_buildah inspect --type image --format '{{range $name, $value := .OCIv1.Config.Labels}}{{$name}}={{$value}} {{end}}' "$IMAGE")
[[ $labels == *"org.opencontainers.image.revision=$REVISION "* ]] || stop "the labels do not name the revision: $labels"
passed "labels: $labels"

mapfile -t words < <(read_job gpu)
root=$(with_buildah mount "$container")
as_pod "$root" "$IMAGE" 1000 "$place/gpu" "${words[@]}" --model demo --total-sample-count 64 --min-duration 5
passed "the command of deploy/k8s/gpu.yaml, the demo in place of the model: ${words[*]}"

# The client: as a user that nobody knows.
# shellcheck disable=SC2086 # options are words
with_buildah build --isolation chroot --no-cache --force-rm --target client --build-arg BASE="$BASE" ${BUILD_OPTIONS:-} \
  -t "$CLIENT" "$place/context"
with_buildah rm "$container" >/dev/null
container=$(with_buildah from --pull-never "$CLIENT")
root=$(with_buildah mount "$container")
passed "the client image is built: $(du -sm "$root" | cut -f1) MB"
mapfile -t words < <(read_job client endpoint wait_ready server_target_qps)
as_pod "$root" "$CLIENT" "$NOBODY" "$place/client" "${words[@]}" --model demo --backend echo --mode performance \
  --server-target-qps 50 --min-duration 2
passed "the command of deploy/k8s/client.yaml as user $NOBODY, with an engine that computes nothing in place of a server"
