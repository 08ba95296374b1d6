; Textures, samplers and surfaces, as module-scope variables and as parameters.
target triple = "nvptx64-nvidia-nvcl"
@tex = addrspace(1) global i64 0, align 8
@smp = addrspace(1) global i64 1, align 8
declare {i32,i32,i32,i32} @llvm.nvvm.tex.2d.v4s32.f32(i64, i64, float, float)
declare void @llvm.nvvm.sust.b.1d.i32.trap(i64, i32, i32)
declare i64 @llvm.nvvm.texsurf.handle.internal.p1(ptr addrspace(1))
define ptx_kernel void @textures(i64 %texture, i64 %sampler, i64 %surface, ptr addrspace(1) %out) {
  %texels = call {i32,i32,i32,i32} @llvm.nvvm.tex.2d.v4s32.f32(i64 %texture, i64 %sampler, float 1.0, float 2.0)
  %first = extractvalue {i32,i32,i32,i32} %texels, 0
  store volatile i32 %first, ptr addrspace(1) %out
  %t = call i64 @llvm.nvvm.texsurf.handle.internal.p1(ptr addrspace(1) @tex)
  %s = call i64 @llvm.nvvm.texsurf.handle.internal.p1(ptr addrspace(1) @smp)
  %more = call {i32,i32,i32,i32} @llvm.nvvm.tex.2d.v4s32.f32(i64 %t, i64 %s, float 1.0, float 2.0)
  %second = extractvalue {i32,i32,i32,i32} %more, 1
  store volatile i32 %second, ptr addrspace(1) %out
  call void @llvm.nvvm.sust.b.1d.i32.trap(i64 %surface, i32 0, i32 %second)
  ret void
}
!nvvm.annotations = !{!0, !1, !2, !3, !4}
!0 = !{ptr @textures, !"rdoimage", i32 0}
!1 = !{ptr @textures, !"sampler", i32 1}
!2 = !{ptr @textures, !"wroimage", i32 2}
!3 = !{ptr addrspace(1) @tex, !"texture", i32 1}
!4 = !{ptr addrspace(1) @smp, !"sampler", i32 1}
