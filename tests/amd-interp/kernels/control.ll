; Control flow, LDS, barriers and cross-lane operations. All kernels have only explicit arguments.
target triple = "amdgcn-amd-amdhsa"

declare i32 @llvm.amdgcn.workitem.id.x()
declare i32 @llvm.amdgcn.workitem.id.y()
declare i32 @llvm.amdgcn.workitem.id.z()
declare i32 @llvm.amdgcn.workgroup.id.x()
declare i32 @llvm.amdgcn.workgroup.id.y()
declare i32 @llvm.amdgcn.workgroup.id.z()
declare void @llvm.amdgcn.s.barrier()
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
declare i32 @llvm.amdgcn.readfirstlane(i32)
declare i32 @llvm.amdgcn.readlane(i32, i32)
declare i64 @llvm.amdgcn.ballot.i64(i1)
declare i32 @llvm.amdgcn.mbcnt.lo(i32, i32)
declare i32 @llvm.amdgcn.mbcnt.hi(i32, i32)
declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32, i32, i32, i1)
declare i32 @llvm.amdgcn.ds.swizzle(i32, i32)

@tile = internal addrspace(3) global [256 x i32] poison, align 16
@dynamic = external addrspace(3) global [0 x i32], align 16
@table = internal addrspace(4) constant [4 x i32] [i32 17, i32 5, i32 -3, i32 1000]
@counter = addrspace(1) global i32 7

define amdgpu_kernel void @vector_add(ptr addrspace(1) %a, ptr addrspace(1) %b, ptr addrspace(1) %c, i32 %n) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %s = mul i32 %g, 96
  %i = add i32 %s, %t
  %in = icmp ult i32 %i, %n
  br i1 %in, label %body, label %end
body:
  %pa = getelementptr float, ptr addrspace(1) %a, i32 %i
  %pb = getelementptr float, ptr addrspace(1) %b, i32 %i
  %pc = getelementptr float, ptr addrspace(1) %c, i32 %i
  %x = load float, ptr addrspace(1) %pa
  %y = load float, ptr addrspace(1) %pb
  %z = fadd float %x, %y
  store float %z, ptr addrspace(1) %pc
  br label %end
end:
  ret void
}

; Length of Collatz's sequence; each lane has a different number of iterations.
define amdgpu_kernel void @collatz(ptr addrspace(1) %out) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %start = add i32 %t, 1
  br label %loop
loop:
  %v = phi i32 [ %start, %0 ], [ %next, %more ]
  %k = phi i32 [ 0, %0 ], [ %k1, %more ]
  %one = icmp eq i32 %v, 1
  br i1 %one, label %end, label %more
more:
  %k1 = add i32 %k, 1
  %bit = and i32 %v, 1
  %odd = icmp eq i32 %bit, 1
  %three = mul i32 %v, 3
  %plus = add i32 %three, 1
  %half = lshr i32 %v, 1
  %next = select i1 %odd, i32 %plus, i32 %half
  br label %loop
end:
  %p = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %k, ptr addrspace(1) %p
  ret void
}

; Nested branches, a switch and an early exit.
define amdgpu_kernel void @branches(ptr addrspace(1) %out, i32 %n) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %in = icmp ult i32 %t, %n
  br i1 %in, label %first, label %end
first:
  %p = getelementptr i32, ptr addrspace(1) %out, i32 %t
  %r = urem i32 %t, 5
  switch i32 %r, label %other [
    i32 0, label %zero
    i32 1, label %one
    i32 3, label %end
  ]
zero:
  %big = icmp ugt i32 %t, 20
  br i1 %big, label %zero_big, label %join
zero_big:
  %m = mul i32 %t, %t
  br label %join
one:
  %s = sub i32 0, %t
  br label %join
other:
  %ix = and i32 %t, 3
  %q = getelementptr [4 x i32], ptr addrspace(4) @table, i32 0, i32 %ix
  %l = load i32, ptr addrspace(4) %q
  br label %join
join:
  %v = phi i32 [ 100, %zero ], [ %m, %zero_big ], [ %s, %one ], [ %l, %other ]
  store i32 %v, ptr addrspace(1) %p
  br label %end
end:
  ret void
}

; The sum of 256 words of a workgroup through LDS.
define amdgpu_kernel void @reduce(ptr addrspace(1) %in, ptr addrspace(1) %out) "amdgpu-flat-work-group-size"="256,256" {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %s = mul i32 %g, 256
  %i = add i32 %s, %t
  %pi = getelementptr i32, ptr addrspace(1) %in, i32 %i
  %x = load i32, ptr addrspace(1) %pi
  %slot = getelementptr [256 x i32], ptr addrspace(3) @tile, i32 0, i32 %t
  store i32 %x, ptr addrspace(3) %slot
  br label %loop
loop:
  %h = phi i32 [ 128, %0 ], [ %h2, %next ]
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %low = icmp ult i32 %t, %h
  br i1 %low, label %add, label %next
add:
  %j = add i32 %t, %h
  %pj = getelementptr [256 x i32], ptr addrspace(3) @tile, i32 0, i32 %j
  %a = load i32, ptr addrspace(3) %slot
  %b = load i32, ptr addrspace(3) %pj
  %ab = add i32 %a, %b
  store i32 %ab, ptr addrspace(3) %slot
  br label %next
next:
  %h2 = lshr i32 %h, 1
  %more = icmp ne i32 %h2, 0
  br i1 %more, label %loop, label %done
done:
  %zero = icmp eq i32 %t, 0
  br i1 %zero, label %write, label %end
write:
  %r = load i32, ptr addrspace(3) %slot
  %po = getelementptr i32, ptr addrspace(1) %out, i32 %g
  store i32 %r, ptr addrspace(1) %po
  br label %end
end:
  ret void
}

; Reverses a workgroup's words in dynamic LDS, through generic pointers.
define amdgpu_kernel void @reverse(ptr addrspace(1) %data, i32 %n) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %p = getelementptr i32, ptr addrspace(1) %data, i32 %t
  %x = load i32, ptr addrspace(1) %p
  %d = getelementptr [0 x i32], ptr addrspace(3) @dynamic, i32 0, i32 %t
  %gd = addrspacecast ptr addrspace(3) %d to ptr
  store volatile i32 %x, ptr %gd
  fence syncscope("workgroup") release
  call void @llvm.amdgcn.s.barrier()
  fence syncscope("workgroup") acquire
  %last = sub i32 %n, 1
  %r = sub i32 %last, %t
  %e = getelementptr [0 x i32], ptr addrspace(3) @dynamic, i32 0, i32 %r
  %y = load i32, ptr addrspace(3) %e
  store i32 %y, ptr addrspace(1) %p
  ret void
}

; Three-dimensional ids.
define amdgpu_kernel void @ids(ptr addrspace(1) %out) {
  %x = call i32 @llvm.amdgcn.workitem.id.x()
  %y = call i32 @llvm.amdgcn.workitem.id.y()
  %z = call i32 @llvm.amdgcn.workitem.id.z()
  %gx = call i32 @llvm.amdgcn.workgroup.id.x()
  %gy = call i32 @llvm.amdgcn.workgroup.id.y()
  %gz = call i32 @llvm.amdgcn.workgroup.id.z()
  %a = mul i32 %gz, 3
  %b = add i32 %a, %gy
  %c = mul i32 %b, 2
  %d = add i32 %c, %gx
  %e = mul i32 %d, 4
  %f = add i32 %e, %z
  %g = mul i32 %f, 5
  %h = add i32 %g, %y
  %i = mul i32 %h, 7
  %j = add i32 %i, %x
  %p = getelementptr i32, ptr addrspace(1) %out, i32 %j
  store i32 %j, ptr addrspace(1) %p
  ret void
}

; Butterfly sums in groups of 32 lanes.
define amdgpu_kernel void @butterfly(ptr addrspace(1) %data) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %p = getelementptr i32, ptr addrspace(1) %data, i32 %t
  %x = load i32, ptr addrspace(1) %p
  br label %loop
loop:
  %v = phi i32 [ %x, %0 ], [ %w, %loop ]
  %m = phi i32 [ 16, %0 ], [ %m2, %loop ]
  %l0 = call i32 @llvm.amdgcn.mbcnt.lo(i32 -1, i32 0)
  %l = call i32 @llvm.amdgcn.mbcnt.hi(i32 -1, i32 %l0)
  %o = xor i32 %l, %m
  %a = shl i32 %o, 2
  %u = call i32 @llvm.amdgcn.ds.bpermute(i32 %a, i32 %v)
  %w = add i32 %v, %u
  %m2 = lshr i32 %m, 1
  %more = icmp ne i32 %m2, 0
  br i1 %more, label %loop, label %end
end:
  store i32 %w, ptr addrspace(1) %p
  ret void
}

; Ballot, first lane, lane by number, DPP and swizzles.
define amdgpu_kernel void @lanes(ptr addrspace(1) %in, ptr addrspace(1) %out) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %p = getelementptr i32, ptr addrspace(1) %in, i32 %t
  %x = load i32, ptr addrspace(1) %p
  %bit = and i32 %x, 1
  %odd = icmp eq i32 %bit, 1
  %mask = call i64 @llvm.amdgcn.ballot.i64(i1 %odd)
  %o = mul i32 %t, 8
  %q0 = getelementptr i32, ptr addrspace(1) %out, i32 %o
  store i64 %mask, ptr addrspace(1) %q0
  %first = call i32 @llvm.amdgcn.readfirstlane(i32 %x)
  %q2 = getelementptr i32, ptr addrspace(1) %q0, i32 2
  store i32 %first, ptr addrspace(1) %q2
  %five = call i32 @llvm.amdgcn.readlane(i32 %x, i32 5)
  %q3 = getelementptr i32, ptr addrspace(1) %q0, i32 3
  store i32 %five, ptr addrspace(1) %q3
  %quad = call i32 @llvm.amdgcn.update.dpp.i32(i32 poison, i32 %x, i32 177, i32 15, i32 15, i1 true)
  %q4 = getelementptr i32, ptr addrspace(1) %q0, i32 4
  store i32 %quad, ptr addrspace(1) %q4
  %shr = call i32 @llvm.amdgcn.update.dpp.i32(i32 %t, i32 %x, i32 273, i32 15, i32 15, i1 false)
  %q5 = getelementptr i32, ptr addrspace(1) %q0, i32 5
  store i32 %shr, ptr addrspace(1) %q5
  %swz = call i32 @llvm.amdgcn.ds.swizzle(i32 %x, i32 2079)
  %q6 = getelementptr i32, ptr addrspace(1) %q0, i32 6
  store i32 %swz, ptr addrspace(1) %q6
  %half = call i32 @llvm.amdgcn.update.dpp.i32(i32 poison, i32 %x, i32 321, i32 15, i32 15, i1 true)
  %q7 = getelementptr i32, ptr addrspace(1) %q0, i32 7
  store i32 %half, ptr addrspace(1) %q7
  ret void
}

; An array in scratch indexed by data, and a call that is not inlined.
define amdgpu_kernel void @scratch(ptr addrspace(1) %in, ptr addrspace(1) %out) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %a = alloca [33 x i32], addrspace(5)
  br label %fill
fill:
  %i = phi i32 [ 0, %0 ], [ %i1, %fill ]
  %pi = getelementptr [33 x i32], ptr addrspace(5) %a, i32 0, i32 %i
  %v = mul i32 %i, %t
  store volatile i32 %v, ptr addrspace(5) %pi
  %i1 = add i32 %i, 1
  %more = icmp ult i32 %i1, 33
  br i1 %more, label %fill, label %read
read:
  %pt = getelementptr i32, ptr addrspace(1) %in, i32 %t
  %x = load i32, ptr addrspace(1) %pt
  %k = urem i32 %x, 33
  %pk = getelementptr [33 x i32], ptr addrspace(5) %a, i32 0, i32 %k
  %y = load volatile i32, ptr addrspace(5) %pk
  %flat = addrspacecast ptr addrspace(5) %pk to ptr
  %r = call i32 @helper(i32 %y, ptr %flat)
  %po = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %r, ptr addrspace(1) %po
  ret void
}

define internal i32 @helper(i32 %x, ptr %p) noinline {
  %b = alloca [8 x i16], addrspace(5)
  %k = and i32 %x, 7
  %pb = getelementptr [8 x i16], ptr addrspace(5) %b, i32 0, i32 %k
  store volatile i16 -5, ptr addrspace(5) %pb
  %v = load volatile i32, ptr %p
  store volatile i32 1, ptr %p
  %h = load volatile i16, ptr addrspace(5) %pb
  %w = sext i16 %h to i32
  %s = add i32 %v, %w
  ret i32 %s
}

; Calls of functions by address, from a table of two.
@functions = internal addrspace(4) constant [2 x ptr] [ptr @twice, ptr @square]

define internal i32 @twice(i32 %x) noinline {
  %r = shl i32 %x, 1
  ret i32 %r
}

define internal i32 @square(i32 %x) noinline {
  %r = mul i32 %x, %x
  ret i32 %r
}

define amdgpu_kernel void @indirect(ptr addrspace(1) %out, i32 %which) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %p = getelementptr [2 x ptr], ptr addrspace(4) @functions, i32 0, i32 %which
  %f = load ptr, ptr addrspace(4) %p
  %r = call i32 %f(i32 %t)
  %q = getelementptr i32, ptr addrspace(1) %out, i32 %t
  store i32 %r, ptr addrspace(1) %q
  ret void
}

; A variable of the module.
define amdgpu_kernel void @count() {
  %old = atomicrmw add ptr addrspace(1) @counter, i32 1 syncscope("agent") monotonic
  ret void
}

; Copies out arguments of all sizes.
define amdgpu_kernel void @arguments(ptr addrspace(1) %out, i8 %a, i16 %b, i32 %c, i64 %d, <4 x i32> %e, half %f, double %g) {
  %xa = sext i8 %a to i64
  store i64 %xa, ptr addrspace(1) %out
  %xb = zext i16 %b to i64
  %p1 = getelementptr i64, ptr addrspace(1) %out, i32 1
  store i64 %xb, ptr addrspace(1) %p1
  %xc = sext i32 %c to i64
  %p2 = getelementptr i64, ptr addrspace(1) %out, i32 2
  store i64 %xc, ptr addrspace(1) %p2
  %p3 = getelementptr i64, ptr addrspace(1) %out, i32 3
  store i64 %d, ptr addrspace(1) %p3
  %p4 = getelementptr i64, ptr addrspace(1) %out, i32 4
  store <4 x i32> %e, ptr addrspace(1) %p4
  %xf = fpext half %f to double
  %p6 = getelementptr i64, ptr addrspace(1) %out, i32 6
  store double %xf, ptr addrspace(1) %p6
  %p7 = getelementptr i64, ptr addrspace(1) %out, i32 7
  store double %g, ptr addrspace(1) %p7
  ret void
}

; One lane writes past the end of a buffer.
define amdgpu_kernel void @outside(ptr addrspace(1) %out, i32 %at) {
  %t = call i32 @llvm.amdgcn.workitem.id.x()
  %i = add i32 %t, %at
  %p = getelementptr i32, ptr addrspace(1) %out, i32 %i
  store i32 %t, ptr addrspace(1) %p
  ret void
}

; Never ends.
define amdgpu_kernel void @endless(ptr addrspace(1) %p) {
  br label %loop
loop:
  %x = load volatile i32, ptr addrspace(1) %p
  br label %loop
}

declare void @llvm.trap()

define amdgpu_kernel void @trap(ptr addrspace(1) %p, i32 %n) {
  %c = icmp ugt i32 %n, 3
  br i1 %c, label %bad, label %good
bad:
  call void @llvm.trap()
  unreachable
good:
  ret void
}

!llvm.module.flags = !{!0}
!0 = !{i32 1, !"amdhsa_code_object_version", i32 500}
