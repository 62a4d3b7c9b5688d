#!/bin/bash
# Put images for several architectures under one name (an OCI index). Each was built on a machine of its architecture.
#   bash containers/make_index.sh TARGET IMAGE...
# TARGET: docker://REGISTRY/NAME:TAG, or oci:FOLDER:TAG for a folder that the nodes can read.
# IMAGE: such as docker://REGISTRY/NAME:x86_64-nvidia, oci:FOLDER:TAG or containers-storage:localhost/NAME:TAG
set -euo pipefail
(($# >= 2)) || { sed -n '2,6s/^# //p' "$0" >&2; exit 2; }
target=$1
shift
index=localhost/steelyard-index-$$
buildah manifest create "$index" >/dev/null
trap 'buildah manifest rm "$index" >/dev/null 2>&1 || buildah rmi "$index" >/dev/null 2>&1 || true' EXIT
declare -A seen
for image in "$@"; do
  architecture=$(skopeo inspect --config "$image" | sed -n 's/^ *"architecture": *"\([a-z0-9_]*\)".*/\1/p' | head -n 1)
  [[ $architecture ]] || { echo "$image: unknown architecture" >&2; exit 1; }
  [[ -z ${seen[$architecture]:-} ]] ||
    { echo "$image and ${seen[$architecture]} are both for $architecture" >&2; exit 1; }
  seen[$architecture]=$image
  buildah manifest add --arch "$architecture" --os linux "$index" "$image" >/dev/null
  echo "$architecture: $image"
done
buildah manifest push --quiet --all --format oci "$index" "$target"
echo "index: $target"
