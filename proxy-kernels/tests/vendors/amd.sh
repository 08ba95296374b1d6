#!/bin/sh
# Prints the number of waves per SIMD for numbers of vector registers, according to LLVM's AMD target.
# Needs llc-22. Usage: ./amd.sh > amd.txt
for cpu in gfx906 gfx908 gfx90a gfx942 gfx1030 gfx1100 gfx1201; do
    for registers in 8 24 25 28 32 36 40 48 64 84 85 96 97 128 129 168 169 192 255 256; do
        waves=$(llc-22 -mcpu=$cpu -O2 -o - <<EOT | sed -n 's/^; Occupancy: //p'
target triple = "amdgcn-amd-amdhsa"
define amdgpu_kernel void @k() "amdgpu-flat-work-group-size"="64,64" {
  call void asm sideeffect "; use", "~{v$((registers - 1))}"()
  ret void
}
EOT
)
        echo "$cpu $registers $waves"
    done
done
