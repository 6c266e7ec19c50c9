#!/bin/sh
# sh deploy/cuda_links.sh ENVIRONMENT: makes a CUDA toolkit of NVIDIA's packages in it, for kernels that are compiled at
# the first start.
#
# FlashInfer 0.7 looks for nvcc in CUDA_HOME, PATH and /usr/local/cuda, and links with -lcudart and -lcuda from
# CUDA_HOME/lib64 (flashinfer/jit/cpp_ext.py). The packages have nvcc, but neither lib64 nor the names that a linker
# looks for. In an image the driver comes later, to the usual place.
set -eu
driver=$(PATH=$PATH:/sbin:/usr/sbin ldconfig -p 2>/dev/null | sed -n 's/.*libcuda\.so\.1 (libc6,.*=> //p' | head -n 1)
for nvcc in "$1"/lib/python3*/site-packages/nvidia/cu*/bin/nvcc; do
  [ -e "$nvcc" ] || continue
  home=${nvcc%/bin/nvcc}
  ln -sfn lib "$home/lib64"
  for library in "$home"/lib/*.so.*; do
    ln -sf "${library##*/}" "${library%%.so.*}.so"
  done
  ln -sf "${driver:-/usr/lib/$(uname -m)-linux-gnu/libcuda.so.1}" "$home/lib/libcuda.so"
done
