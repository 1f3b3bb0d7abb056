#!/bin/sh
# weak_symbols_test.sh ARCHIVE: objects compiled with ISA flags must emit no shared inline symbols, or the
# linker may keep, say, their AVX-512 copy of a function for every caller. Fails too when it finds no such object.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp "$1" "$dir/lib.a"
cd "$dir"
ar x lib.a
count=0
for object in *_avx*.o *_neondot*.o *_neoni8mm*.o; do
  [ -e "$object" ] || continue
  count=$((count + 1))
  weak=$("${NM:-nm}" --demangle "$object" | grep -E ' [WVuv] ' || true)
  if [ -n "$weak" ]; then
    echo "$object has weak symbols (put the function in an anonymous namespace):"
    echo "$weak"
    exit 1
  fi
done
[ "$count" -gt 0 ] || { echo "no objects with ISA flags in $1"; exit 1; }
echo "$count objects, no weak symbols"
