#!/usr/bin/env bash
# Builds the images ludus:cpu, ludus:gpu and ludus:game-server, or those that are named.
#   deploy/build.sh                          all three, from the base of the Containerfiles
#   deploy/build.sh --debian cpu             from a Debian base that mmdebstrap makes here, without an image registry
#   deploy/build.sh cpu -- --network host    what follows -- goes to the build command
# Variables: BASE, another base image; TORCH_INDEX, another index for PyTorch (empty: the one that pip is set up for);
# ENGINE, another engine than podman or docker.
set -euo pipefail
cd "$(dirname "$0")/.."

engine=${ENGINE:-$(command -v podman || command -v docker)} || { echo "no podman and no docker here" >&2; exit 1; }
debian=false images=()
while (($#)); do
  case $1 in
    --debian) debian=true ;;
    --) shift; break ;;
    cpu | gpu | game-server) images+=("$1") ;;
    *) sed --quiet '2,7s/^# //p' "$0" >&2; exit 2 ;;
  esac
  shift
done
((${#images[@]})) || images=(cpu gpu game-server)

options=()
if $debian; then
  BASE=${BASE:-localhost/ludus-base:bookworm}
  if ! "$engine" image inspect "$BASE" > /dev/null 2>&1; then
    archive=$(mktemp --suffix .tar)
    trap 'rm --force "$archive"' EXIT
    mmdebstrap --variant=minbase --include=ca-certificates,python3,python3-venv \
      --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' bookworm "$archive"
    "$engine" import "$archive" "$BASE"
  fi
fi
[[ -z ${BASE:-} ]] || options+=(--build-arg "BASE=$BASE")
torch=()
[[ -z ${TORCH_INDEX+set} ]] || torch=(--build-arg "TORCH_INDEX=$TORCH_INDEX")

for image in "${images[@]}"; do
  began=$SECONDS
  case $image in game-server) arguments=("${options[@]}") ;; *) arguments=("${options[@]}" "${torch[@]}") ;; esac
  "$engine" build --file "deploy/Containerfile.$image" --tag "ludus:$image" "${arguments[@]}" "$@" .
  bytes=$("$engine" image inspect --format '{{.Size}}' "ludus:$image")
  echo "ludus:$image: $((bytes / 1000000)) MB, built in $((SECONDS - began)) s"
done
