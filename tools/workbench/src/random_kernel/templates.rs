//! The instructions of random kernels.
//!
//! | token | stands for |
//! |---|---|
//! | `$r` `$d` `$h` | a register of 32, 64, 16 bits |
//! | `$q` `$v` | two and four different 32-bit registers |
//! | `$f` `$g` `$k` `$z` `$x` `$y` | f32, f64, f16, bf16, f16x2, bf16x2 |
//! | `$p` | a predicate |
//! | `$i` | a 32-bit register or a literal |
//! | `$s` `$b` | a literal up to 70, up to 255 |
//! | `$o` | one of `.rn`, `.rz`, `.rm`, `.rp` |
//!
//! `%a`, `%e`, `%n`, `%u`, `%fs` and so on are scratch registers: each template writes them before
//! it reads them. All operations are exact, so any two devices must agree bit for bit. The bits of
//! a NaN never reach an integer register, since PTX leaves them open and devices differ.

mod alone;

pub(super) use alone::ALONE;

/// Templates for the lanes of `%m`, run together.
pub(super) const TOGETHER: &[&str] = &[
    "vote.sync.ballot.b32 $r, $p, %m;",
    "vote.sync.all.pred $p, $p, %m;",
    "vote.sync.any.pred $p, !$p, %m;",
    "vote.sync.uni.pred $p, $p, %m;",
    "match.any.sync.b32 $r, $r, %m;",
    "match.all.sync.b64 $r|$p, $d, %m;",
    "redux.sync.add.s32 $r, $r, %m;",
    "redux.sync.min.u32 $r, $r, %m;",
    "redux.sync.xor.b32 $r, $r, %m;",
    "redux.sync.max.s32 $r, $r, %m;",
    "redux.sync.and.b32 $r, $r, %m;",
    "match.any.sync.b64 $r, $d, %m;",
    "bar.warp.sync %m;",
    // Values from inactive lanes are not used.
    "shfl.sync.bfly.b32 %a0|%u0, $r, $s, 31, %m; and.b32 %a1, $s, 0; selp.b32 %a0, %a0, 0, %u0; mov.b32 %a2, $r; \
     vote.sync.ballot.b32 %a1, 1, %m; setp.eq.u32 %u1, %a1, -1; selp.b32 $r, %a0, %a2, %u1;",
    "mov.u32 %a1, %laneid; sub.u32 %a1, %a1, $s; and.b32 %a1, %a1, 31; shfl.sync.idx.b32 %a0, $r, %a1, 31, %m; \
     shr.u32 %a2, %m, %a1; and.b32 %a2, %a2, 1; setp.ne.u32 %u0, %a2, 0; selp.b32 $r, %a0, $r, %u0;",
    "shfl.sync.up.b32 %a0|%u0, $r, 3, 0, %m; mov.u32 %a1, %laneid; sub.u32 %a1, %a1, 3; shr.u32 %a2, %m, %a1; and.b32 \
    %a2, %a2, 1; \
     setp.ne.and.u32 %u1, %a2, 0, %u0; selp.b32 $r, %a0, $r, %u1;",
    "shfl.sync.down.b32 %a0|%u0, $r, 5, 0x181f, %m; mov.u32 %a1, %laneid; add.u32 %a1, %a1, 5; shr.u32 %a2, %m, %a1; \
    and.b32 %a2, %a2, 1; \
     setp.ne.and.u32 %u1, %a2, 0, %u0; selp.b32 $r, %a0, $r, %u1;",
];

/// Templates for member masks that differ between the lanes of `%m`: each lane's `%tile` is the
/// mask of the lanes of its tile. Tiles are 16, 4 or all odd or even lanes, the lanes with equal
/// values, or those for which a predicate holds, and the others.
pub(super) const TILES: &[&str] = &[
    "mov.u32 %tile, %laneid; and.b32 %tile, %tile, 16; shl.b32 %tile, 0xffff, %tile; and.b32 %tile, %tile, %m;",
    "mov.u32 %tile, %laneid; and.b32 %tile, %tile, 28; shl.b32 %tile, 15, %tile; and.b32 %tile, %tile, %m;",
    "mov.u32 %tile, %laneid; and.b32 %tile, %tile, 1; shl.b32 %tile, 0x55555555, %tile; and.b32 %tile, %tile, %m;",
    "and.b32 %tile, $r, 7; match.any.sync.b32 %tile, %tile, %m;",
    "vote.sync.ballot.b32 %tile, %p1, %m; @!%p1 not.b32 %tile, %tile; and.b32 %tile, %tile, %m;",
];

/// Templates for all remaining threads of the block, run together.
pub(super) const BLOCK: &[&str] = &[
    "st.shared.u32 [%slot], $r; bar.sync 0; add.u32 %a0, %t, $b; rem.u32 %a0, %a0, %threads; shl.b32 %a0, %a0, 2; \
    mov.u32 %a1, slots; \
     add.u32 %a0, %a0, %a1; ld.shared.u32 $r, [%a0]; bar.sync 0;",
    "bar.red.popc.u32 $r, 0, $p;",
    "bar.red.or.pred $p, 1, $p;",
    "bar.red.and.pred $p, 2, !$p;",
    "barrier.sync 3;",
    "barrier.cta.sync.aligned 4;",
    "barrier.cta.red.or.pred $p, 7, $p;",
    "st.shared.u32 [%slot], $r; bar.sync 5; xor.b32 %a0, %t, 1; setp.lt.u32 %u0, %a0, %threads; shl.b32 %a0, %a0, 2; \
    mov.u32 %a1, slots; \
     add.u32 %a0, %a0, %a1; @%u0 ld.shared.u32 $r, [%a0]; bar.sync 5;",
    "bar.sync 0; ld.shared.u32 %a0, [cells+16]; xor.b32 $r, $r, %a0; ld.shared.v2.u32 {%a0, %a1}, [cells]; add.u32 $r, \
    $r, %a1; bar.sync 0;",
];

/// Templates for blocks in which every warp is full and no thread has exited: barriers of some
/// warps, and matrix products.
pub(super) const WHOLE: &[&str] = &[
    "{ st.shared.u32 [%slot], $r; setp.lt.u32 %u0, %threads, 64; @%u0 bra past; setp.ge.u32 %u1, %t, 64; @%u1 bra \
    past; setp.lt.u32 %u0, %t, 32; \
     @%u0 bra first; bar.sync 8, 64; ld.shared.u32 $r, [%slot+-128]; bra past; first: bar.arrive 8, 64; past: bar.sync \
     0; }",
    "{ st.shared.u32 [%slot], $r; setp.lt.u32 %u0, %threads, 64; @%u0 bra past; setp.ge.u32 %u1, %t, 64; @%u1 bra \
    past; bar.sync 9, 64; \
     xor.b32 %a0, %t, 32; shl.b32 %a0, %a0, 2; mov.u32 %a1, slots; add.u32 %a0, %a0, %a1; ld.shared.u32 $r, [%a0]; \
     past: bar.sync 0; }",
    "{ setp.lt.u32 %u0, %threads, 64; @%u0 bra past; setp.ge.u32 %u1, %t, 64; @%u1 bra past; bar.red.popc.u32 $r, 10, \
    64, $p; past: bar.sync 0; }",
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {$v}, {$v}, {$q}, {$v};",
    "mma.sync.aligned.m8n8k16.row.col.satfinite.s32.u8.s8.s32 {$q}, {$r}, {$r}, {$q};",
    "movmatrix.sync.aligned.m8n8.trans.b16 $r, $r;",
    "st.shared.u32 [%slot], $r; bar.sync 0; and.b32 %a0, %t, 7; shl.b32 %a0, %a0, 4; mov.u32 %a1, slots; add.u32 %a0, \
    %a0, %a1; \
     ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {$r}, [%a0]; bar.sync 0;",
];

/// The beginning of every module.
pub(super) const MODULE: &str = "\
.version 8.3
.target sm_90
.address_size 64

.const .align 4 .b32 table[32] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, \
2, 7, 9, 5};

.global .align 4 .b32 primes[8] = {2, 3, 5, 7, -11, 13, 17, 19};
.extern .shared .align 16 .b8 dynamic[];

.func (.param .b32 result) blend(.param .b32 a, .param .b32 b)
{
    .reg .b32 %r<3>;
    .reg .pred %p;
    ld.param.b32 %r0, [a];
    ld.param.b32 %r1, [b];
    setp.lt.u32 %p, %r0, %r1;
    @%p shf.l.wrap.b32 %r0, %r1, %r0, 9;
    @!%p vabsdiff4.u32.u32.u32 %r0, %r1, %r0, %r1;
    st.param.b32 [result], %r0;
    ret;
}

.func (.reg .b64 result) widen(.reg .b64 a, .reg .b32 b)
{
    .reg .pred %p;
    mad.wide.s32 result, b, b, a;
    setp.lt.s32 %p, b, 0;
    @%p ret;
    not.b64 result, result;
    ret;
}

.func (.param .b32 result) mix(.param .b32 a, .param .b32 b)
{
    .reg .b32 %r<6>;
    .reg .pred %p;
    ld.param.b32 %r0, [a];
    ld.param.b32 %r1, [b];
    xor.b32 %r2, %r0, %r1;
    mul.lo.u32 %r2, %r2, 0x9E3779B1;
    and.b32 %r3, %r0, 7;
again:
    setp.eq.u32 %p, %r3, 0;
    @%p bra done;
    sub.u32 %r3, %r3, 1;
    {
        .reg .b64 %w;
        cvt.u64.u32 %w, %r1;
        call.uni (%w), widen, (%w, %r2);
        cvt.u32.u64 %r4, %w;
    }
    mad.lo.u32 %r2, %r2, %r4, %r3;
    bra again;
done:
    st.param.b32 [result], %r2;
    ret;
}

.func (.param .align 4 .b8 result[12]) turn(.param .align 4 .b8 a[12])
{
    .reg .b32 %r<3>;
    ld.param.b32 %r0, [a];
    ld.param.b32 %r1, [a+4];
    ld.param.b32 %r2, [a+8];
    st.param.b32 [result], %r2;
    st.param.b32 [result+4], %r0;
    st.param.b32 [result+8], %r1;
    ret;
}
";

/// The beginning of the kernel: declarations, and registers initialized from the input and the
/// thread index.
pub(super) const BEGIN: &str = "
.visible .entry k(.param .u64 in_param, .param .u64 acc_param, .param .u64 out_param)
{
    .reg .b32 %r<8>, %a<4>, %x<3>, %y<3>, %m<8>, %c<8>, %w<8>, %t, %tile, %threads, %slot, %wide, %block;
    .reg .b64 %d<4>, %e<4>, %in, %acc, %out, %stack;
    .reg .b16 %h<4>, %n<2>, %k<4>, %z<3>, %ks;
    .reg .f32 %f<6>, %fs;
    .reg .f64 %g<4>, %gs;
    .reg .pred %p<4>, %u<2>, %l<8>;
    .shared .align 16 .b8 slots[512];
    .shared .align 16 .b8 cells[32];
    .shared .align 4 .b32 alive[4];
    .local .align 16 .b8 array[64];
    ld.param.u64 %in, [in_param];
    ld.param.u64 %acc, [acc_param];
    ld.param.u64 %out, [out_param];
    mov.u32 %a0, %tid.x; mov.u32 %a1, %tid.y; mov.u32 %a2, %tid.z; mov.u32 %a3, %ntid.y;
    mad.lo.u32 %a1, %a2, %a3, %a1;
    mov.u32 %a2, %ntid.x; mad.lo.u32 %t, %a1, %a2, %a0;
    mov.u32 %a0, %ntid.z; mul.lo.u32 %threads, %a2, %a3; mul.lo.u32 %threads, %threads, %a0;
    mov.u32 %a0, %ctaid.x; mov.u32 %a1, %ctaid.y; mov.u32 %a2, %nctaid.x; mad.lo.u32 %block, %a1, %a2, %a0;
    shl.b32 %a0, %t, 2; mov.u32 %a1, slots; add.u32 %slot, %a0, %a1;
    shl.b32 %a0, %t, 4; mov.u32 %a1, dynamic; add.u32 %wide, %a0, %a1; mov.u64 %stack, array; cvta.local.u64 %stack, \
    %stack;
    st.shared.u32 [%slot], %t; st.shared.v4.u32 [%wide], {%t, %a0, %t, %a0};
    setp.ge.u32 %u0, %t, 1;
    mov.u32 %a0, 77;
    @!%u0 st.shared.v4.u32 [cells], {%a0, %a0, %a0, %a0};
    @!%u0 st.shared.v4.u32 [cells+16], {%a0, %a0, %a0, %a0};
    st.local.v4.u32 [array], {%t, %a0, %t, %a0};
    st.local.v4.u32 [array+16], {%a0, %a0, %t, %t};
    st.local.v4.u32 [array+32], {%t, %t, %t, %t};
    st.local.v4.u32 [array+48], {%a0, %t, %a0, %a0};
    mad.lo.u32 %a0, %block, 13, %t; and.b32 %a0, %a0, 15; shl.b32 %a0, %a0, 6; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, \
    %in;
    ld.global.v4.u32 {%r0, %r1, %r2, %r3}, [%e0];
    ld.global.v4.u32 {%r4, %r5, %r6, %r7}, [%e0+16];
    xor.b32 %r7, %r7, %t; and.b32 %r0, %r0, 31; add.u32 %r1, %t, 1;
    mov.b64 %d0, {%r2, %r3}; mov.b64 %d1, {%r7, %r1}; cvt.s64.s32 %d2, %r4; mov.b64 %d3, 0x8000000000000000;
    ld.global.v4.f32 {%f0, %f1, %f2, %f3}, [%e0+32];
    cvt.rn.f32.s32 %f4, %t; mov.f32 %f5, 0f3DCCCCCD;
    cvt.f64.f32 %g0, %f1; cvt.rn.f64.s64 %g1, %d1; mov.f64 %g2, 0d3FD5555555555555; ld.global.f64 %g3, [%e0+48];
    cvt.u16.u32 %h0, %r5; cvt.u16.u32 %h1, %t; mov.b32 {%h2, %h3}, %r6;
    cvt.rn.f16.f32 %k0, %f0; cvt.rn.f16.f32 %k1, %f4; mov.b16 %k2, 0x3c01; mov.b16 %k3, %h0;
    cvt.rn.bf16.f32 %z0, %f1; mov.b16 %z1, 0x3fc0; mov.b16 %z2, %h2;
    mov.b32 %x0, %r2; cvt.rn.f16x2.f32 %x1, %f4, %f5; mov.b32 %x2, {%k1, %k2};
    mov.b32 %y0, %r3; mov.b32 %y1, {%z0, %z1}; mov.b32 %y2, 0x3f803f80;
    setp.lt.s32 %p0, %r2, 0; setp.eq.u32 %p1, %r0, 5; and.b32 %a0, %t, 1; setp.ne.u32 %p2, %a0, 0; setp.gt.u32 %p3, \
    %t, 40;
    setp.eq.u32 %u0, %t, %t;
    and.b32 %a0, %t, -32; sub.u32 %a0, %threads, %a0; min.u32 %a0, %a0, 32; bmsk.clamp.b32 %m0, 0, %a0;
    bar.sync 0;
";

/// The end of the kernel, for threads that have not exited: folds in the shared cells, then stores
/// every register.
pub(super) const END: &str = "
    bar.sync 0;
    ld.shared.u32 %a0, [cells]; add.u32 %r0, %r0, %a0;
    ld.shared.u32 %a0, [cells+20]; xor.b32 %r1, %r1, %a0;
    ld.shared.u32 %a0, [cells+24]; add.u32 %r2, %r2, %a0;
";

/// Dynamic shared memory: 16 bytes per thread.
pub(super) const DYNAMIC_BYTES: u32 = 16 * 128;

/// Number of 64-bit words for atomics.
pub(super) const CELL_WORDS: usize = 18;

/// Output bytes per thread.
pub(super) const OUT_BYTES: usize = 192;
