//! Instructions that a random kernel is made of.
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
//! `%a`, `%e`, `%n`, `%u`, `%fs` and so on are scratch: each row writes them before it reads them.
//! Everything here is exact, so that any two devices must agree bit for bit. A NaN's bits never get
//! into a register of integers: they differ between devices, and PTX leaves them open.

/// Rows that any thread may run by itself.
pub(super) const ALONE: &[&str] = &[
    // Integers.
    "add.s32 $r, $r, $i;",
    "sub.u32 $r, $r, $i;",
    "add.sat.s32 $r, $r, $i;",
    "sub.sat.s32 $r, $r, $i;",
    "mul.lo.s32 $r, $r, $i;",
    "mul.hi.u32 $r, $r, $i;",
    "mul.hi.s32 $r, $r, $i;",
    "mul.wide.s32 $d, $r, $i;",
    "mul.wide.u32 $d, $r, $i;",
    "mul.wide.s16 $r, $h, $h;",
    "mad.lo.u32 $r, $r, $i, $r;",
    "mad.hi.s32 $r, $r, $r, $r;",
    "mad.wide.s32 $d, $r, $r, $d;",
    "mad.hi.sat.s32 $r, $r, $r, $r;",
    "mul24.lo.s32 $r, $r, $r;",
    "mul24.hi.u32 $r, $r, $r;",
    "mad24.lo.u32 $r, $r, $r, $r;",
    "sad.s32 $r, $r, $r, $r;",
    "sad.u32 $r, $r, $r, $r;",
    "div.s32 $r, $r, $r;",
    "div.u32 $r, $r, $r;",
    "rem.s32 $r, $r, $r;",
    "rem.u32 $r, $r, $i;",
    "div.s64 $d, $d, $d;",
    "rem.u64 $d, $d, $d;",
    "div.u16 $h, $h, $h;",
    "rem.s16 $h, $h, $h;",
    "abs.s32 $r, $r;",
    "neg.s64 $d, $d;",
    "min.s32 $r, $r, $i;",
    "max.u32 $r, $r, $i;",
    "min.u64 $d, $d, $d;",
    "max.s16 $h, $h, $h;",
    "add.s64 $d, $d, $d;",
    "sub.s64 $d, $d, $d;",
    "mul.lo.s64 $d, $d, $d;",
    "mul.hi.u64 $d, $d, $d;",
    "mul.hi.s64 $d, $d, $d;",
    "mad.lo.s64 $d, $d, $d, $d;",
    "add.s16 $h, $h, $h;",
    "mul.lo.u16 $h, $h, $h;",
    "mad.lo.s16 $h, $h, $h, $h;",
    "add.cc.u32 $r, $r, $r; addc.u32 $r, $r, $r;",
    "sub.cc.u32 $r, $r, $r; subc.cc.u32 $r, $r, $r; subc.u32 $r, $r, $r;",
    "sub.cc.u32 $r, $r, $r; addc.cc.u32 $r, $r, $r; subc.cc.u32 $r, $r, $r; madc.lo.u32 $r, $r, $r, $r;",
    "mul24.lo.u32 $r, $r, $i;",
    "mad24.hi.sat.s32 $r, $r, $r, $r;",
    "add.s16x2 $r, $r, $r;",
    "min.relu.s16x2 $r, $r, $r;",
    "max.u16x2 $r, $r, $r;",
    "vadd4.s32.s32.s32.sat $r, $r, $r, $r;",
    "vabsdiff2.u32.u32.u32.add $r, $r, $r, $r;",
    "cvt.pack.sat.u8.s32.b32 $r, $r, $r, $r;",
    "cvt.pack.sat.s16.s32 $r, $r, $r;",
    "mad.lo.cc.u64 $d, $d, $d, $d; madc.hi.u64 $d, $d, $d, $d;",
    "mad.lo.cc.u32 $r, $r, $r, $r; madc.hi.cc.u32 $r, $r, $r, $r; addc.u32 $r, $r, 0;",
    "add.cc.u64 $d, $d, $d; addc.u64 $d, $d, $d;",
    "dp4a.s32.s32 $r, $r, $r, $r;",
    "dp4a.u32.s32 $r, $r, $r, $r;",
    "dp2a.lo.s32.u32 $r, $r, $r, $r;",
    "dp2a.hi.u32.u32 $r, $r, $r, $r;",
    // Bits.
    "and.b32 $r, $r, $i;",
    "or.b64 $d, $d, $d;",
    "xor.b32 $r, $r, $i;",
    "not.b16 $h, $h;",
    "cnot.b32 $r, $r;",
    "lop3.b32 $r, $r, $r, $r, $b;",
    "fns.b32 $r, $r, $r, $s;",
    "lop3.or.b32 $r|$p, $r, $r, $r, $b, $p;",
    "cnot.b64 $d, $d;",
    "shf.l.clamp.b32 $r, $r, $r, $i;",
    "prmt.b32.ecl $r, $r, $r, $r;",
    "prmt.b32 $r, $r, $r, 0x7a25;",
    "szext.clamp.u32 $r, $r, $r;",
    "shl.b32 $r, $r, $s;",
    "shr.s32 $r, $r, $r;",
    "shr.u64 $d, $d, $s;",
    "shl.b64 $d, $d, $r;",
    "shr.s64 $d, $d, $s;",
    "shr.s16 $h, $h, $s;",
    "shf.l.wrap.b32 $r, $r, $r, $r;",
    "shf.r.clamp.b32 $r, $r, $r, $s;",
    "popc.b32 $r, $r;",
    "popc.b64 $r, $d;",
    "clz.b32 $r, $r;",
    "clz.b64 $r, $d;",
    "brev.b32 $r, $r;",
    "brev.b64 $d, $d;",
    "bfind.s32 $r, $r;",
    "bfind.shiftamt.u64 $r, $d;",
    "bfe.s32 $r, $r, $s, $s;",
    "bfe.u32 $r, $r, $r, $s;",
    "bfe.s64 $d, $d, $s, $s;",
    "bfi.b32 $r, $r, $r, $s, $s;",
    "bfi.b64 $d, $d, $d, $s, $s;",
    "prmt.b32 $r, $r, $r, $i;",
    "prmt.b32.f4e $r, $r, $r, $r;",
    "prmt.b32.rc16 $r, $r, $r, $r;",
    "selp.b32 $r, $r, $i, $p;",
    "selp.b64 $d, $d, $d, $p;",
    "slct.s32.s32 $r, $r, $r, $r;",
    "bmsk.clamp.b32 $r, $s, $s;",
    "szext.wrap.s32 $r, $r, $s;",
    // Predicates.
    "setp.lt.s32 $p, $r, $i;",
    "setp.ge.u32 $p, $r, $i;",
    "setp.eq.s64 $p, $d, $d;",
    "setp.hi.u64 $p, $d, $d;",
    "setp.ne.b16 $p, $h, $h;",
    "setp.gt.and.s32 $p, $r, $r, $p;",
    "setp.le.xor.u32 $p, $r, $r, !$p;",
    "setp.lt.s32 %u0|%u1, $r, $r; and.pred $p, $p, %u0; or.pred $p, $p, %u1;",
    "setp.lt.f32 $p, $f, $f;",
    "setp.geu.f64 $p, $g, $g;",
    "setp.num.f32 $p, $f, $f;",
    "setp.neu.or.f32 $p, $f, $f, $p;",
    "setp.lt.f16x2 %u0|%u1, $x, $x; and.pred $p, %u0, %u1;",
    "setp.geu.bf16x2 %u0|%u1, $y, $y; xor.pred $p, %u0, %u1;",
    "setp.gtu.ftz.f32 $p, $f, $f;",
    "testp.normal.f32 $p, $f;",
    "testp.subnormal.f64 $p, $g;",
    "set.le.f32.s32 $f, $r, $r;",
    "set.gtu.f16x2.f16x2 $x, $x, $x;",
    "xor.pred $p, $p, $p;",
    "not.pred $p, $p;",
    "set.lt.u32.s32 $r, $r, $r;",
    "set.gt.u32.f32 $r, $f, $f;",
    // Moves and conversions.
    "mov.b32 $r, $i;",
    "mov.b64 $d, {$r, $r};",
    "mov.b64 {$q}, $d;",
    "mov.b32 $r, {$h, $h};",
    "mov.b32 {$h, %n0}, $r;",
    "cvt.u64.u32 $d, $r;",
    "cvt.s64.s32 $d, $r;",
    "cvt.u32.u64 $r, $d;",
    "cvt.s32.s8 $r, $r;",
    "cvt.u32.u8 $r, $r;",
    "cvt.sat.s8.s32 $r, $r;",
    "cvt.sat.u16.s32 $h, $r;",
    "cvt.u16.u32 $h, $r;",
    "cvt.s32.s16 $r, $h;",
    "cvt.rn.f32.s32 $f, $r;",
    "cvt.rz.f32.u32 $f, $r;",
    "cvt.rp.f32.s64 $f, $d;",
    "cvt.rn.f64.s64 $g, $d;",
    "cvt.rm.f64.u64 $g, $d;",
    "cvt.rn.f16.s32 $k, $r;",
    "cvt.rzi.s32.f32 $r, $f;",
    "cvt.rni.u32.f32 $r, $f;",
    "cvt.rpi.s64.f32 $d, $f;",
    "cvt.rmi.s32.f64 $r, $g;",
    "cvt.rzi.u64.f64 $d, $g;",
    "cvt.rni.ftz.s32.f32 $r, $f;",
    "cvt.rzi.s32.f16 $r, $k;",
    "cvt.rni.f32.f32 $f, $f;",
    "cvt.rzi.f64.f64 $g, $g;",
    "cvt.sat.f32.f32 $f, $f;",
    "cvt.f64.f32 $g, $f;",
    "cvt$o.f32.f64 $f, $g;",
    "cvt.rn.f16.f32 $k, $f;",
    "cvt.f32.f16 $f, $k;",
    "cvt.rn.bf16.f32 $z, $f;",
    "cvt.rn.f16x2.f32 $x, $f, $f;",
    "cvt.rn.bf16x2.f32 $y, $f, $f;",
    "cvt.rn.satfinite.e4m3x2.f32 $h, $f, $f;",
    "cvt.rn.satfinite.relu.e5m2x2.f32 $h, $f, $f;",
    "cvt.rn.f16x2.e4m3x2 $x, $h;",
    "cvt.rn.f16x2.e5m2x2 $x, $h;",
    "cvt.rz.relu.bf16x2.f32 $y, $f, $f;",
    "cvt.rn.satfinite.f16.f32 $k, $f;",
    "cvt.rz.f16.f32 $k, $f;",
    "cvt.f32.bf16 $f, $z;",
    "cvt.f64.f16 $g, $k;",
    "cvt.rmi.f16.f16 $k, $k;",
    "cvt.rp.f64.u64 $g, $d;",
    "cvt.rn.bf16.s32 $z, $r;",
    "mov.b32 $f, $r;",
    "mov.b32 $x, $r;",
    "mov.b32 %fs, $f; setp.nan.f32 %u0, %fs, %fs; mov.b32 %a0, %fs; selp.b32 $r, 0x7fc00000, %a0, %u0;",
    "mov.b64 %gs, $g; setp.nan.f64 %u0, %gs, %gs; mov.b64 %e0, %gs; selp.b64 $d, 0, %e0, %u0;",
    // Floats.
    "add$o.f32 $f, $f, $f;",
    "sub$o.ftz.f32 $f, $f, $f;",
    "mul$o.f32 $f, $f, $f;",
    "mul.sat.f32 $f, $f, $f;",
    "fma$o.f32 $f, $f, $f, $f;",
    "fma.rn.ftz.f32 $f, $f, $f, $f;",
    "div$o.f32 $f, $f, $f;",
    "rcp$o.f32 $f, $f;",
    "sqrt$o.f32 $f, $f;",
    "sqrt.rn.ftz.f32 $f, $f;",
    "min.f32 $f, $f, $f;",
    "max.f32 $f, $f, $f;",
    "max.NaN.f32 $f, $f, $f;",
    // The sign of a NaN shows in a number here, too.
    "cvt.rn.f32.s32 %fs, $r; min.xorsign.abs.f32 $f, %fs, 0fC0400000;",
    "max.ftz.NaN.f32 $f, $f, $f;",
    "cvt.rn.f32.s32 %fs, $r; copysign.f32 $f, %fs, $f;",
    "slct.f32.s32 $f, $f, $f, $r;",
    "abs.f32 $f, $f;",
    "neg.ftz.f32 $f, $f;",
    "add$o.f64 $g, $g, $g;",
    "sub$o.f64 $g, $g, $g;",
    "mul$o.f64 $g, $g, $g;",
    "fma$o.f64 $g, $g, $g, $g;",
    "div$o.f64 $g, $g, $g;",
    "sqrt$o.f64 $g, $g;",
    "rcp$o.f64 $g, $g;",
    "min.f64 $g, $g, $g;",
    "abs.f64 $g, $g;",
    "selp.f32 $f, $f, $f, $p;",
    "add.f16 $k, $k, $k;",
    "sub.rn.ftz.f16 $k, $k, $k;",
    "mul.f16 $k, $k, $k;",
    "fma.rn.f16 $k, $k, $k, $k;",
    "fma.rn.relu.f16 $k, $k, $k, $k;",
    "max.f16 $k, $k, $k;",
    "neg.f16 $k, $k;",
    "setp.lt.f16 $p, $k, $k;",
    "fma.rn.bf16 $z, $z, $z, $z;",
    "max.bf16 $z, $z, $z;",
    "neg.bf16 $z, $z;",
    "add.rn.bf16 $z, $z, $z;",
    "mul.rn.bf16x2 $y, $y, $y;",
    "sub.bf16x2 $y, $y, $y;",
    "fma.rn.relu.bf16 $z, $z, $z, $z;",
    "abs.f16x2 $x, $x;",
    "cvt.rn.f16.s32 %ks, $r; mov.b16 %n0, 0xc200; min.xorsign.abs.f16 $k, %ks, %n0;",
    "max.NaN.f16x2 $x, $x, $x;",
    "add.f16x2 $x, $x, $x;",
    "mul.sat.f16x2 $x, $x, $x;",
    "fma.rn.f16x2 $x, $x, $x, $x;",
    "min.f16x2 $x, $x, $x;",
    "fma.rn.bf16x2 $y, $y, $y, $y;",
    "max.NaN.bf16x2 $y, $y, $y;",
    // Memory.
    "and.b32 %a0, $r, 0x3fc; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.global.u32 $r, [%e0];",
    "and.b32 %a0, $r, 0x3ff; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.global.s8 $r, [%e0];",
    "and.b32 %a0, $r, 0x3fe; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.global.nc.u16 $h, [%e0+0];",
    "and.b32 %a0, $r, 0x3f8; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.global.v2.u32 {$q}, [%e0];",
    "and.b32 %a0, $r, 0x3f0; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.v4.u32 {$v}, [%e0];",
    "and.b32 %a0, %t, 0xff; shl.b32 %a0, %a0, 2; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.global.f32 $f, [%e0];",
    "ld.global.u64 $d, [%in+64];",
    "and.b32 %a0, $r, 60; mov.u32 %a1, array; add.u32 %a0, %a0, %a1; st.local.u32 [%a0], $r;",
    "and.b32 %a0, $r, 60; mov.u32 %a1, array; add.u32 %a0, %a0, %a1; ld.local.u32 $r, [%a0];",
    "st.local.v2.u32 [array+8], {$r, $r};",
    "ld.local.v4.u32 {$v}, [array+16];",
    "and.b32 %a0, $r, 63; cvt.u64.u32 %e0, %a0; mov.u64 %e1, array; cvta.local.u64 %e1, %e1; add.s64 %e0, %e0, %e1; st.u8 [%e0], $r;",
    "and.b32 %a0, $r, 31; mul.wide.u32 %e0, %a0, 4; mov.u64 %e1, table; add.s64 %e0, %e0, %e1; ld.const.u32 $r, [%e0];",
    "and.b32 %a0, $r, 31; mul.wide.u32 %e0, %a0, 4; mov.u64 %e1, table; cvta.const.u64 %e1, %e1; add.s64 %e0, %e0, %e1; ld.u32 $r, [%e0];",
    "and.b32 %a0, $r, 7; mul.wide.u32 %e0, %a0, 4; mov.u64 %e1, primes; add.s64 %e0, %e0, %e1; ld.global.s32 $r, [%e0];",
    "and.b32 %a0, $r, 0x3f0; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.global.v2.u64 {%e1, $d}, [%e0]; xor.b64 $d, $d, %e1;",
    "and.b32 %a0, $r, 0x3fc; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.global.ca.v4.s8 {%n0, $h, _, %n1}, [%e0]; sub.s16 $h, %n0, %n1;",
    "and.b32 %a0, $r, 0x3fc; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in; ld.volatile.global.v2.u16 {$h, %n1}, [%e0];",
    "st.shared.v4.u32 [%wide], {$r, $r, $r, $r}; ld.shared.u64 $d, [%wide+8]; ld.shared.s8 $r, [%wide+3];",
    "st.shared.u64 [%wide+8], $d; st.shared.u16 [%wide+10], $h; ld.shared.v2.u32 {$q}, [%wide+8];",
    "cvt.u64.u32 %e0, %wide; cvta.shared.u64 %e0, %e0; st.v2.u64 [%e0], {$d, $d}; ld.u8 $r, [%e0+5]; ld.shared.u64 $d, [%wide];",
    "and.b32 %a0, $r, 12; add.u32 %a0, %a0, %wide; st.shared.u32 [%a0], $r; ld.shared.v4.u32 {$v}, [%wide];",
    "st.shared.f64 [%wide], $g; ld.shared.f64 $g, [%wide]; st.shared.v2.u32 [%wide], {%t, %t};",
    "st.shared.u64 [%wide], $d; st.shared.u64 [%wide+8], $d; cp.async.ca.shared.global [%wide+8], [%in+8], 8; cp.async.wait_all; ld.shared.u64 $d, [%wide+8];",
    "and.b32 %a0, $r, 15; cp.async.cg.shared.global [%wide], [%in+32], 16, %a0; cp.async.commit_group; cp.async.wait_group 0; ld.shared.v4.u32 {$v}, [%wide];",
    "st.shared.u32 [%wide], $r; atom.shared.cas.b32 $r, [%wide], $r, $r; ld.shared.u32 $r, [%wide];",
    "st.shared.u64 [%wide], $d; atom.shared.exch.b64 $d, [%wide], $d; red.shared.max.s64 [%wide], $d; ld.shared.u64 $d, [%wide];",
    "st.shared.u64 [%wide], $d; cvt.u64.u32 %e0, %wide; cvta.shared.u64 %e0, %e0; atom.add.u64 $d, [%e0], $d; atom.inc.u32 $r, [%e0+4], $i;",
    "st.shared.f32 [%wide], $f; red.shared.add.f32 [%wide], $f; ld.shared.f32 $f, [%wide]; st.shared.u32 [%wide], %t;",
    "st.shared.f64 [%wide], $g; atom.shared.add.f64 $g, [%wide], $g; ld.shared.f64 $g, [%wide]; st.shared.v2.u32 [%wide], {%t, %t};",
    "st.shared.b32 [%wide], $x; red.shared.add.noftz.f16x2 [%wide], $x; ld.shared.b32 $x, [%wide]; st.shared.u32 [%wide], %t;",
    "cvta.to.local.u64 %e0, %stack; cvta.local.u64 %e1, %e0; isspacep.local $p, %e1; st.f64 [%e1+8], $g; ld.local.f64 $g, [%e0+8]; st.local.v2.u32 [%e0+8], {%t, %t};",
    // Atomics, each operation on cells of its own, so that the order makes no difference.
    "and.b32 %a0, $r, 28; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %acc; red.global.add.u32 [%e0], $r;",
    "and.b32 %a0, $r, 28; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %acc; atom.global.min.s32 %a1, [%e0+32], $r;",
    "red.global.max.u32 [%acc+64], $r;",
    "red.global.and.b32 [%acc+68], $i;",
    "atom.global.or.b32 %a1, [%acc+72], $r;",
    "red.xor.b32 [%acc+76], $r;",
    "red.global.add.u64 [%acc+80], $d;",
    "atom.global.max.s64 %e0, [%acc+88], $d;",
    "and.b32 %a0, $r, 12; mov.u32 %a1, cells; add.u32 %a0, %a0, %a1; red.shared.add.u32 [%a0], $r;",
    "red.shared.min.u32 [cells+16], $r;",
    "atom.shared.xor.b32 %a1, [cells+20], $r;",
    "red.shared.max.s32 [cells+24], $r;",
    "red.global.inc.u32 [%acc+96], 1000;",
    "atom.global.dec.u32 %a1, [%acc+100], 77;",
    "red.global.xor.b64 [%acc+104], $d;",
    "atom.min.u64 %e0, [%acc+112], $d;",
    "red.relaxed.gpu.global.and.b64 [%acc+120], $d;",
    "and.b32 %a0, $r, 7; cvt.rn.f32.u32 %fs, %a0; red.global.add.f32 [%acc+128], %fs;",
    "and.b32 %a0, $r, 0xffff; cvt.rn.f64.u32 %gs, %a0; atom.global.add.f64 %gs, [%acc+136], %gs;",
    "and.b32 %a0, $r, 1; shl.b32 %a0, %a0, 2; mov.u32 %a1, cells; add.u32 %a0, %a0, %a1; cvt.u64.u32 %e0, %a0; cvta.shared.u64 %e0, %e0; \
     red.add.u32 [%e0], $r;",
    // Calls.
    "{ .param .b32 pa; .param .b32 pb; .param .b32 pr; st.param.b32 [pa], $r; st.param.b32 [pb], $r; mov.u64 %e0, mix; mov.u64 %e1, blend; \
     selp.b64 %e0, %e0, %e1, $p; shape: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _); call (pr), %e0, (pa, pb), shape; \
     ld.param.b32 $r, [pr]; }",
    "{ .param .b32 pa; .param .b32 pb; .param .b32 pr; st.param.b32 [pa], $r; st.param.b32 [pb], $r; call.uni (pr), mix, (pa, pb); ld.param.b32 $r, [pr]; }",
    "call.uni ($d), widen, ($d, $r);",
    "{ .param .align 4 .b8 pa[12]; .param .align 4 .b8 pr[12]; st.param.b32 [pa], $r; st.param.b32 [pa+4], $r; st.param.b32 [pa+8], $r; \
     call.uni (pr), turn, (pa); ld.param.b32 %a0, [pr]; ld.param.b32 $r, [pr+4]; xor.b32 $r, $r, %a0; ld.param.b32 $r, [pr+8]; }",
];

/// Rows that the lanes of `%m` run together.
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
    // A value of a lane that does not take part is not used.
    "shfl.sync.bfly.b32 %a0|%u0, $r, $s, 31, %m; and.b32 %a1, $s, 0; selp.b32 %a0, %a0, 0, %u0; mov.b32 %a2, $r; \
     vote.sync.ballot.b32 %a1, 1, %m; setp.eq.u32 %u1, %a1, -1; selp.b32 $r, %a0, %a2, %u1;",
    "mov.u32 %a1, %laneid; sub.u32 %a1, %a1, $s; and.b32 %a1, %a1, 31; shfl.sync.idx.b32 %a0, $r, %a1, 31, %m; \
     shr.u32 %a2, %m, %a1; and.b32 %a2, %a2, 1; setp.ne.u32 %u0, %a2, 0; selp.b32 $r, %a0, $r, %u0;",
    "shfl.sync.up.b32 %a0|%u0, $r, 3, 0, %m; mov.u32 %a1, %laneid; sub.u32 %a1, %a1, 3; shr.u32 %a2, %m, %a1; and.b32 %a2, %a2, 1; \
     setp.ne.and.u32 %u1, %a2, 0, %u0; selp.b32 $r, %a0, $r, %u1;",
    "shfl.sync.down.b32 %a0|%u0, $r, 5, 0x181f, %m; mov.u32 %a1, %laneid; add.u32 %a1, %a1, 5; shr.u32 %a2, %m, %a1; and.b32 %a2, %a2, 1; \
     setp.ne.and.u32 %u1, %a2, 0, %u0; selp.b32 $r, %a0, $r, %u1;",
];

/// Rows that all threads of the block that are left run together.
pub(super) const BLOCK: &[&str] = &[
    "st.shared.u32 [%slot], $r; bar.sync 0; add.u32 %a0, %t, $b; rem.u32 %a0, %a0, %threads; shl.b32 %a0, %a0, 2; mov.u32 %a1, slots; \
     add.u32 %a0, %a0, %a1; ld.shared.u32 $r, [%a0]; bar.sync 0;",
    "bar.red.popc.u32 $r, 0, $p;",
    "bar.red.or.pred $p, 1, $p;",
    "bar.red.and.pred $p, 2, !$p;",
    "barrier.sync 3;",
    "barrier.cta.sync.aligned 4;",
    "barrier.cta.red.or.pred $p, 7, $p;",
    "st.shared.u32 [%slot], $r; bar.sync 5; xor.b32 %a0, %t, 1; setp.lt.u32 %u0, %a0, %threads; shl.b32 %a0, %a0, 2; mov.u32 %a1, slots; \
     add.u32 %a0, %a0, %a1; @%u0 ld.shared.u32 $r, [%a0]; bar.sync 5;",
    "bar.sync 0; ld.shared.u32 %a0, [cells+16]; xor.b32 $r, $r, %a0; ld.shared.v2.u32 {%a0, %a1}, [cells]; add.u32 $r, $r, %a1; bar.sync 0;",
];

/// The same where every warp is full and nobody has left: barriers of some warps, and products of
/// matrices.
pub(super) const WHOLE: &[&str] = &[
    "{ st.shared.u32 [%slot], $r; setp.lt.u32 %u0, %threads, 64; @%u0 bra past; setp.ge.u32 %u1, %t, 64; @%u1 bra past; setp.lt.u32 %u0, %t, 32; \
     @%u0 bra first; bar.sync 8, 64; ld.shared.u32 $r, [%slot+-128]; bra past; first: bar.arrive 8, 64; past: bar.sync 0; }",
    "{ st.shared.u32 [%slot], $r; setp.lt.u32 %u0, %threads, 64; @%u0 bra past; setp.ge.u32 %u1, %t, 64; @%u1 bra past; bar.sync 9, 64; \
     xor.b32 %a0, %t, 32; shl.b32 %a0, %a0, 2; mov.u32 %a1, slots; add.u32 %a0, %a0, %a1; ld.shared.u32 $r, [%a0]; past: bar.sync 0; }",
    "{ setp.lt.u32 %u0, %threads, 64; @%u0 bra past; setp.ge.u32 %u1, %t, 64; @%u1 bra past; bar.red.popc.u32 $r, 10, 64, $p; past: bar.sync 0; }",
    "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 {$v}, {$v}, {$q}, {$v};",
    "mma.sync.aligned.m8n8k16.row.col.satfinite.s32.u8.s8.s32 {$q}, {$r}, {$r}, {$q};",
    "movmatrix.sync.aligned.m8n8.trans.b16 $r, $r;",
    "st.shared.u32 [%slot], $r; bar.sync 0; and.b32 %a0, %t, 7; shl.b32 %a0, %a0, 4; mov.u32 %a1, slots; add.u32 %a0, %a0, %a1; \
     ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {$r}, [%a0]; bar.sync 0;",
];

/// What stands in front of every kernel.
pub(super) const MODULE: &str = "\
.version 8.3
.target sm_90
.address_size 64

.const .align 4 .b32 table[32] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2, 6, 4, 3, 3, 8, 3, 2, 7, 9, 5};

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

/// Declarations, and registers filled from the input and the thread's number.
pub(super) const BEGIN: &str = "
.visible .entry k(.param .u64 in_param, .param .u64 acc_param, .param .u64 out_param)
{
    .reg .b32 %r<8>, %a<4>, %x<3>, %y<3>, %m<8>, %c<8>, %w<8>, %t, %threads, %slot, %wide, %block;
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
    shl.b32 %a0, %t, 4; mov.u32 %a1, dynamic; add.u32 %wide, %a0, %a1; mov.u64 %stack, array; cvta.local.u64 %stack, %stack;
    st.shared.u32 [%slot], %t; st.shared.v4.u32 [%wide], {%t, %a0, %t, %a0};
    setp.ge.u32 %u0, %t, 1;
    mov.u32 %a0, 77;
    @!%u0 st.shared.v4.u32 [cells], {%a0, %a0, %a0, %a0};
    @!%u0 st.shared.v4.u32 [cells+16], {%a0, %a0, %a0, %a0};
    st.local.v4.u32 [array], {%t, %a0, %t, %a0};
    st.local.v4.u32 [array+16], {%a0, %a0, %t, %t};
    st.local.v4.u32 [array+32], {%t, %t, %t, %t};
    st.local.v4.u32 [array+48], {%a0, %t, %a0, %a0};
    mad.lo.u32 %a0, %block, 13, %t; and.b32 %a0, %a0, 15; shl.b32 %a0, %a0, 6; cvt.u64.u32 %e0, %a0; add.s64 %e0, %e0, %in;
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
    setp.lt.s32 %p0, %r2, 0; setp.eq.u32 %p1, %r0, 5; and.b32 %a0, %t, 1; setp.ne.u32 %p2, %a0, 0; setp.gt.u32 %p3, %t, 40;
    setp.eq.u32 %u0, %t, %t;
    and.b32 %a0, %t, -32; sub.u32 %a0, %threads, %a0; min.u32 %a0, %a0, 32; bmsk.clamp.b32 %m0, 0, %a0;
    bar.sync 0;
";

/// What all threads do that have not exited: the shared cells go out, then every register.
pub(super) const END: &str = "
    bar.sync 0;
    ld.shared.u32 %a0, [cells]; add.u32 %r0, %r0, %a0;
    ld.shared.u32 %a0, [cells+20]; xor.b32 %r1, %r1, %a0;
    ld.shared.u32 %a0, [cells+24]; add.u32 %r2, %r2, %a0;
";

/// Dynamic shared memory: 16 bytes of each thread.
pub(super) const DYNAMIC_BYTES: u32 = 16 * 128;

/// Words of 64 bits that atomics go to.
pub(super) const CELL_WORDS: usize = 18;

/// Bytes that each thread stores.
pub(super) const OUT_BYTES: usize = 192;
