; What LLVM writes beside code: initial values, managed variables, aliases, indirect calls, tables, structures by value, clusters.
target triple = "nvptx64-nvidia-cuda"
@glob = addrspace(1) global [4 x i32] [i32 1, i32 2, i32 3, i32 4]
@managed_v = addrspace(1) global i32 7
@ptrs = addrspace(1) global [2 x ptr] [ptr addrspacecast (ptr addrspace(1) @glob to ptr), ptr getelementptr (i8, ptr addrspacecast (ptr addrspace(1) @glob to ptr), i64 8)]
@packed = addrspace(1) global <{ i8, ptr, i32 }> <{ i8 1, ptr addrspacecast (ptr addrspace(1) @glob to ptr), i32 4 }>
@packed2 = addrspace(1) global <{ i8, ptr addrspace(1), ptr }> <{ i8 1, ptr addrspace(1) @glob, ptr @callee }>
@sh = internal addrspace(3) global [128 x float] undef, align 16
@dyn = external addrspace(3) global [0 x i8], align 16
@cst = addrspace(4) constant [3 x double] [double 1.0, double 0x7FF8000000000000, double 3.5]
@common = common addrspace(1) global i64 0
@fp = addrspace(1) global [2 x ptr] [ptr @callee, ptr @callee2]
@halfs = addrspace(1) global <2 x half> <half 1.0, half 2.0>
define i32 @callee(i32 %a, [2 x i64] %b) noinline { %c = add i32 %a, 1 ret i32 %c }
define i32 @callee2(i32 %a, [2 x i64] %b) noinline { %c = sub i32 %a, 1 ret i32 %c }
@al = alias i32 (i32, [2 x i64]), ptr @callee
declare void @dead(ptr) noreturn
declare i32 @vprintf(ptr, ptr)
define { i32, <4 x float>, i128 } @multi(<4 x float> %v, i128 %x, {i8, i16, ptr} %s) noinline {
  %a = insertvalue { i32, <4 x float>, i128 } undef, i32 3, 0
  %b = insertvalue { i32, <4 x float>, i128 } %a, <4 x float> %v, 1
  %c = insertvalue { i32, <4 x float>, i128 } %b, i128 %x, 2
  ret { i32, <4 x float>, i128 } %c
}
define ptx_kernel void @k(ptr byval([64 x i32]) align 64 %desc, ptr noalias align 16 %p, i32 %n, <8 x half> %h, i1 %flag, ptr %f) "nvvm.reqntid"="128,2,1" "nvvm.cluster_dim"="2,1,1" "nvvm.minctasm"="2" "nvvm.maxnreg"="128" {
entry:
  %q = getelementptr i32, ptr %desc, i32 %n
  %v = load i32, ptr %q
  switch i32 %v, label %d [ i32 0, label %a  i32 1, label %b  i32 2, label %c i32 3, label %e i32 4, label %g i32 5, label %h1 ]
a: store i32 %n, ptr %p br label %d
b: call i32 %f(i32 %n, [2 x i64] zeroinitializer) br label %d
c: call void @dead(ptr %p) unreachable
e: %m = call { i32, <4 x float>, i128 } @multi(<4 x float> zeroinitializer, i128 3, {i8,i16,ptr} undef)
  br label %d
g: %s = alloca [64 x i32]
  %s2 = getelementptr i32, ptr %s, i32 %n
  store volatile i32 5, ptr %s2
  %x = load volatile i32, ptr %s2
  store i32 %x, ptr %p
  fence seq_cst
  %at = atomicrmw fadd ptr %p, float 1.0 seq_cst
  %at2 = cmpxchg ptr %p, i32 %n, i32 3 acq_rel monotonic
  br label %d
h1: store <8 x half> %h, ptr %p
  %l = load <8 x float>, ptr %p, align 32
  store <8 x float> %l, ptr %p, align 32
  br label %d
d: %z = phi i128 [ 0, %entry ], [ 1, %a ], [2, %b], [4, %g], [5, %h1], [6, %e]
  call void @llvm.nvvm.barrier0()
  call void @llvm.trap()
  ret void
}
declare void @llvm.nvvm.barrier0()
declare void @llvm.trap()
!nvvm.annotations = !{!0}
!0 = !{ptr addrspace(1) @managed_v, !"managed", i32 1}
