//! Integer instructions on edge values and random ones, compared with Rust.

use crate::common;
use crate::common::op::{Kind, Kind::*, check};

const I16: Kind = Int(16);
const I32: Kind = Int(32);
const I64: Kind = Int(64);

#[test]
fn carries_run_through_a_number() {
    check(
        "mov.b64 {%r2, %r3}, %a; mov.b64 {%r4, %r5}, %b; add.cc.u32 %r6, %r2, %r4; addc.cc.u32 %r7, %r3, %r5; \
         addc.u32 %r8, 0, 0; shl.b32 %r8, %r8, 4; add.u32 %r7, %r7, %r8; mov.b64 %d, {%r6, %r7};",
        I64,
        &[I64, I64],
        |v| {
            let (sum, carry) = v[0].overflowing_add(v[1]);
            let high = ((sum >> 32) as u32).wrapping_add(u32::from(carry) << 4);
            u64::from(sum as u32) | u64::from(high) << 32
        },
    );
    check(
        "mov.b64 {%r2, %r3}, %a; mov.b64 {%r4, %r5}, %b; sub.cc.u32 %r6, %r2, %r4; subc.u32 %r7, %r3, %r5; \
         mov.b64 %d, {%r6, %r7};",
        I64,
        &[I64, I64],
        |v| v[0].wrapping_sub(v[1]),
    );
    check("add.cc.u64 %x2, %a, %b; addc.u64 %d, 0, 0;", I64, &[I64, I64], |v| {
        u64::from(v[0].checked_add(v[1]).is_none())
    });
    check("sub.cc.u64 %x2, %a, %b; subc.u64 %d, 0, 0;", I64, &[I64, I64], |v| if v[0] < v[1] { u64::MAX } else { 0 });
    check(
        "mov.b64 {%r2, %r3}, %a; mov.b64 {%r4, %r5}, %b; mad.lo.cc.u32 %r6, %r2, %r4, %r5; \
         madc.hi.u32 %r7, %r2, %r4, 0; mov.b64 %d, {%r6, %r7};",
        I64,
        &[I64, I64],
        |v| (v[0] & 0xffff_ffff) * (v[1] & 0xffff_ffff) + (v[1] >> 32),
    );
    check("mad.lo.cc.u64 %x2, %a, %b, %c; madc.hi.u64 %d, %a, %b, 0;", I64, &[I64, I64, I64], |v| {
        ((u128::from(v[0]) * u128::from(v[1]) + u128::from(v[2])) >> 64) as u64
    });
    // A subtraction sets the carry if it does not borrow, so the effect on a later number depends
    // on whether that is added or subtracted.
    let two = &[I32, I32];
    let low = |x: u64| x & 0xffff_ffff;
    check("sub.cc.u32 %r2, %a, %b; addc.u32 %d, 7, 0;", I32, two, |v| 7 + u64::from(v[0] >= v[1]));
    check("add.cc.u32 %r2, %a, %b; subc.u32 %d, 7, 0;", I32, two, |v| 6 + u64::from(v[0] + v[1] > 0xffff_ffff));
    check("sub.cc.u32 %r2, %a, %b; madc.lo.u32 %d, %a, %b, 5;", I32, two, |v| {
        low(v[0] * v[1] + 5 + u64::from(v[0] >= v[1]))
    });
    check("mad.lo.cc.u32 %r2, %a, %b, %a; subc.u32 %d, %a, %b;", I32, two, |v| {
        low(v[0].wrapping_sub(v[1]).wrapping_sub(1 - ((low(v[0] * v[1]) + v[0]) >> 32)))
    });
    check(
        "sub.cc.u32 %r2, %a, %b; addc.cc.u32 %r3, %b, %b; subc.cc.u32 %r4, %r3, %a; addc.u32 %d, 0, 0;",
        I32,
        two,
        |v| {
            let sum = 2 * v[1] + u64::from(v[0] >= v[1]);
            u64::from(low(sum) + (sum >> 32) > v[0])
        },
    );
    check("sub.cc.u64 %x2, %a, %b; addc.u64 %d, 0, 0;", I64, &[I64, I64], |v| u64::from(v[0] >= v[1]));
    // A guarded instruction does not change the flag if it does not run.
    check(
        "setp.lt.u32 %p0, %a, 1000; add.cc.u32 %r2, %a, %b; @%p0 add.cc.u32 %r3, 1, 1; addc.u32 %d, 0, 0;",
        I32,
        &[I32, I32],
        |v| u64::from(v[0] >= 1000 && v[0] + v[1] > 0xffff_ffff),
    );
}

#[test]
fn products() {
    check("mul.hi.u32 %d, %a, %b;", I32, &[I32, I32], |v| (v[0] * v[1]) >> 32);
    check("mul.hi.s64 %d, %a, %b;", I64, &[I64, I64], |v| {
        ((i128::from(v[0] as i64) * i128::from(v[1] as i64)) >> 64) as u64
    });
    check("mul.hi.s16 %d, %a, %b;", I16, &[I16, I16], |v| {
        u64::from(((i32::from(v[0] as i16) * i32::from(v[1] as i16)) >> 16) as u16)
    });
    check("mul.wide.u16 %d, %a, %b;", I32, &[I16, I16], |v| v[0] * v[1]);
    check("mad.wide.s16 %d, %a, %b, %c;", I32, &[I16, I16, I32], |v| {
        u64::from((i32::from(v[0] as i16) * i32::from(v[1] as i16)).wrapping_add(v[2] as i32) as u32)
    });
    check("mad.wide.s32 %d, %a, %b, %c;", I64, &[I32, I32, I64], |v| {
        (i64::from(v[0] as i32) * i64::from(v[1] as i32)).wrapping_add(v[2] as i64) as u64
    });
    check("mad.hi.sat.s32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| {
        let high = ((i64::from(v[0] as i32) * i64::from(v[1] as i32)) >> 32) as i32;
        u64::from(high.saturating_add(v[2] as i32) as u32)
    });
    let s24 = |x: u64| i64::from((x as i32) << 8 >> 8);
    check("mul24.lo.s32 %d, %a, %b;", I32, &[I32, I32], |v| (s24(v[0]) * s24(v[1])) as u32 as u64);
    check("mul24.hi.u32 %d, %a, %b;", I32, &[I32, I32], |v| {
        (((v[0] & 0xff_ffff) * (v[1] & 0xff_ffff)) >> 16) & 0xffff_ffff
    });
    check("mad24.lo.u32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| {
        ((v[0] & 0xff_ffff) * (v[1] & 0xff_ffff) + v[2]) & 0xffff_ffff
    });
    check("mad24.hi.sat.s32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| {
        u64::from((((s24(v[0]) * s24(v[1])) >> 16) as i32).saturating_add(v[2] as i32) as u32)
    });
    check("dp4a.s32.u32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| {
        let sum: i32 = (0..4).map(|i| i32::from((v[0] >> (8 * i)) as i8) * i32::from((v[1] >> (8 * i)) as u8)).sum();
        u64::from((v[2] as i32).wrapping_add(sum) as u32)
    });
    check("dp2a.hi.u32.s32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| {
        let sum: i32 =
            (0..2).map(|i| i32::from((v[0] >> (16 * i)) as u16) * i32::from((v[1] >> (16 + 8 * i)) as i8)).sum();
        u64::from((v[2] as i32).wrapping_add(sum) as u32)
    });
}

#[test]
fn packed_integers() {
    let lanes = |v: &[u64], of: &dyn Fn(i32, i32) -> i32, signed: bool| -> Vec<i32> {
        let byte =
            |x: u64, i: u32| if signed { i32::from((x >> (8 * i)) as i8) } else { i32::from((x >> (8 * i)) as u8) };
        (0..4).map(|i| of(byte(v[0], i), byte(v[1], i))).collect()
    };
    let joined = |all: Vec<i32>| all.iter().enumerate().map(|(i, &x)| u64::from(x as u8) << (8 * i)).sum::<u64>();
    let three = &[I32, I32, I32];
    check("vadd4.u32.u32.u32 %d, %a, %b, %c;", I32, three, |v| joined(lanes(v, &|a, b| a + b, false)));
    check("vadd4.s32.s32.s32.sat %d, %a, %b, %c;", I32, three, |v| {
        joined(lanes(v, &|a, b| (a + b).clamp(-128, 127), true))
    });
    check("vsub4.u32.u32.u32.sat %d, %a, %b, %c;", I32, three, |v| joined(lanes(v, &|a, b| (a - b).max(0), false)));
    check("vabsdiff4.u32.u32.u32.add %d, %a, %b, %c;", I32, three, |v| {
        (v[2] + lanes(v, &|a, b| (a - b).abs(), false).iter().sum::<i32>() as u64) & 0xffff_ffff
    });
    check("vmax4.s32.s32.s32 %d, %a, %b, %c;", I32, three, |v| joined(lanes(v, &|a, b| a.max(b), true)));
    check("vmin2.s32.s32.s32 %d, %a, %b, %c;", I32, three, |v| {
        let half = |s: u32| u64::from(((v[0] >> s) as i16).min((v[1] >> s) as i16) as u16) << s;
        half(0) | half(16)
    });
}

#[test]
fn saturated_pairs() {
    let sat = |x: u64, low: i32, high: i32| (x as i32).clamp(low, high) as u32;
    check("cvt.pack.sat.s16.s32 %d, %a, %b;", I32, &[I32, I32], |v| {
        u64::from(sat(v[0], -0x8000, 0x7fff) << 16 | sat(v[1], -0x8000, 0x7fff) & 0xffff)
    });
    check("cvt.pack.sat.u8.s32.b32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| {
        u64::from((v[2] as u32) << 16 | sat(v[0], 0, 255) << 8 | sat(v[1], 0, 255))
    });
}

#[test]
fn quotients_of_every_width() {
    check("div.s16 %d, %a, %b;", I16, &[I16, I16], |v| {
        if v[1] == 0 { 0xffff } else { u64::from((v[0] as i16).wrapping_div(v[1] as i16) as u16) }
    });
    check("rem.u16 %d, %a, %b;", I16, &[I16, I16], |v| v[0].checked_rem(v[1]).unwrap_or(0xffff));
    check("rem.s64 %d, %a, %b;", I64, &[I64, I64], |v| {
        if v[1] == 0 { u64::MAX } else { (v[0] as i64).wrapping_rem(v[1] as i64) as u64 }
    });
    check("div.u64 %d, %a, %b;", I64, &[I64, I64], |v| v[0].checked_div(v[1]).unwrap_or(u64::MAX));
}

#[test]
fn shifts_by_any_amount() {
    check("shl.b16 %d, %a, %b;", I16, &[I16, I32], |v| if v[1] > 15 { 0 } else { v[0] << v[1] & 0xffff });
    check("shr.s16 %d, %a, %b;", I16, &[I16, I32], |v| u64::from((v[0] as i16 >> v[1].min(15)) as u16));
    check("shr.u64 %d, %a, %b;", I64, &[I64, I32], |v| if v[1] > 63 { 0 } else { v[0] >> v[1] });
    check("shr.s64 %d, %a, %b;", I64, &[I64, I32], |v| (v[0] as i64 >> v[1].min(63)) as u64);
    let both = |v: &[u64]| v[1] << 32 | v[0];
    check("shf.l.clamp.b32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| (both(v) << v[2].min(32)) >> 32);
    check("shf.r.clamp.b32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| (both(v) >> v[2].min(32)) & 0xffff_ffff);
    check("shf.r.wrap.b32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| (both(v) >> (v[2] & 31)) & 0xffff_ffff);
}

#[test]
fn fields_and_counts() {
    check("bfe.u64 %d, %a, %b, %c;", I64, &[I64, I32, I32], |v| {
        let (pos, len) = (v[1] & 255, v[2] & 255);
        let moved = if pos > 63 { 0 } else { v[0] >> pos };
        if len > 63 { moved } else { moved & ((1 << len) - 1) }
    });
    check("bfi.b64 %d, %a, %b, %c, 7;", I64, &[I64, I64, I32], |v| {
        let pos = v[2] & 255;
        if pos > 63 { v[1] } else { v[1] & !(0x7f << pos) | (v[0] & 0x7f) << pos }
    });
    check("bfind.s64 %d, %a;", I32, &[I64], |v| {
        let folded = if (v[0] as i64) < 0 { !v[0] } else { v[0] };
        if folded == 0 { 0xffff_ffff } else { 63 - u64::from(folded.leading_zeros()) }
    });
    check("bfind.shiftamt.u32 %d, %a;", I32, &[I32], |v| {
        if v[0] == 0 { 0xffff_ffff } else { u64::from((v[0] as u32).leading_zeros()) }
    });
    check("popc.b64 %d, %a;", I32, &[I64], |v| v[0].count_ones().into());
    check("clz.b64 %d, %a;", I32, &[I64], |v| v[0].leading_zeros().into());
    check("brev.b64 %d, %a;", I64, &[I64], |v| v[0].reverse_bits());
    check("bmsk.clamp.b32 %d, %a, %b;", I32, &[I32, I32], |v| {
        (0..32).filter(|&i| i >= v[0] && i < v[0] + v[1]).map(|i| 1u64 << i).sum()
    });
    check("bmsk.wrap.b32 %d, %a, %b;", I32, &[I32, I32], |v| {
        (0..32).filter(|&i| i >= v[0] & 31 && i < (v[0] & 31) + (v[1] & 31)).map(|i| 1u64 << i).sum()
    });
    let szext = |a: u64, width: u64, signed: bool| {
        if width == 0 {
            return 0;
        }
        let field = a & ((1 << width) - 1);
        if signed && field >> (width - 1) & 1 == 1 { (field | u64::MAX << width) & 0xffff_ffff } else { field }
    };
    check("szext.wrap.s32 %d, %a, %b;", I32, &[I32, I32], |v| szext(v[0], v[1] & 31, true));
    check("szext.clamp.u32 %d, %a, %b;", I32, &[I32, I32], |v| if v[1] > 31 { v[0] } else { szext(v[0], v[1], false) });
    check("and.b32 %r2, %b, 31; fns.b32 %d, %a, %r2, %c;", I32, &[I32, I32, I32], |v| {
        let (base, offset) = (v[1] as i64 & 31, i64::from(v[2] as i32));
        let is_set = |i: &i64| v[0] >> *i & 1 == 1;
        let found = match offset {
            0 => Some(base).filter(is_set),
            1.. => (base..32).filter(is_set).nth((offset - 1).min(99) as usize),
            _ => (0..=base).rev().filter(is_set).nth((-offset - 1).min(99) as usize),
        };
        found.map_or(0xffff_ffff, |i| i as u64)
    });
    check("sad.s64 %d, %a, %b, %c;", I64, &[I64, I64, I64], |v| v[2].wrapping_add((v[0] as i64).abs_diff(v[1] as i64)));
    check("sad.u16 %d, %a, %b, %c;", I16, &[I16, I16, I16], |v| (v[2] + v[0].abs_diff(v[1])) & 0xffff);
    check("abs.s64 %d, %a;", I64, &[I64], |v| (v[0] as i64).wrapping_abs() as u64);
    check("cnot.b32 %d, %a;", I32, &[I32], |v| u64::from(v[0] == 0));
}

#[test]
fn bytes_in_every_order() {
    let pick = |v: &[u64], nibbles: u64| {
        let both = v[1] << 32 | v[0];
        (0..4)
            .map(|i| {
                let n = nibbles >> (4 * i) & 15;
                let byte = both >> (8 * (n & 7)) & 0xff;
                (if n & 8 == 0 {
                    byte
                } else if byte & 0x80 != 0 {
                    0xff
                } else {
                    0
                }) << (8 * i)
            })
            .sum::<u64>()
    };
    for selector in [0x5410u64, 0x7632, 0x3340, 0x0123, 0x8888, 0xba98, 0x7777] {
        check(&format!("prmt.b32 %d, %a, %b, {selector:#x};"), I32, &[I32, I32], |v| pick(v, selector));
    }
    check("prmt.b32 %d, %a, %b, %c;", I32, &[I32, I32, I32], |v| pick(v, v[2]));
    // The ISA's tables, most significant byte first.
    for (mode, rows) in [
        ("f4e", [0x3210, 0x4321, 0x5432, 0x6543]),
        ("b4e", [0x5670, 0x6701, 0x7012, 0x0123]),
        ("rc8", [0x0000, 0x1111, 0x2222, 0x3333]),
        ("ecl", [0x3210, 0x3211, 0x3222, 0x3333]),
        ("ecr", [0x0000, 0x1110, 0x2210, 0x3210]),
        ("rc16", [0x1010, 0x3232, 0x1010, 0x3232]),
    ] {
        check(&format!("prmt.b32.{mode} %d, %a, %b, %c;"), I32, &[I32, I32, I32], |v| {
            pick(v, rows[(v[2] & 3) as usize])
        });
        check(&format!("prmt.b32.{mode} %d, %a, %b, 2;"), I32, &[I32, I32], |v| pick(v, rows[2]));
    }
    check("lop3.or.b32 %d|%p0, %a, %b, %c, 0xe8, %p1;", I32, &[I32, I32, I32], |v| {
        (v[0] & v[1]) | (v[0] & v[2]) | (v[1] & v[2])
    });
}

#[test]
fn an_unsupported_modifier_is_rejected() {
    for (code, word) in [
        ("add.wrong.f32 %f0, %f1, %f2;", ".wrong"),
        ("fma.rn.oob.f16 %h1, %h2, %h3, %h4;", ".oob"),
        ("add.rz.f16 %h1, %h2, %h3;", ".rz"),
        ("shl.wrap.b32 %r1, %r2, %r3;", ".wrap"),
    ] {
        let text = common::op::kernel(&format!("{code} mov.b32 %d, %a;"), I32, &[I32]);
        let error =
            common::try_compile(&text, "op", [32, 1, 1], atoll_target_host::CpuLevel::V3).err().map(|e| e.to_string());
        assert!(error.as_ref().is_some_and(|e| e.contains(word)), "{code}: {error:?}");
    }
}

/// The sum of progressions is a progression, or uniform; its carry is neither.
#[test]
fn carries_of_progressions_are_computed_per_lane() {
    let text = ".visible .entry k(.param .u64 o) { .reg .b32 %r<6>; .reg .b64 %x<2>; mov.u32 %r0, %tid.x;
        add.cc.u32 %r1, %r0, 0xfffffff0; addc.u32 %r2, 0, 0;
        sub.u32 %r3, 5, %r0; add.cc.u32 %r1, %r0, %r3; addc.u32 %r2, %r2, %r2;
        sub.cc.u32 %r1, %r0, 9; subc.u32 %r4, 0, 0; mad.lo.u32 %r2, %r2, 16, %r4;
        ld.param.u64 %x0, [o]; mad.wide.u32 %x0, %r0, 4, %x0; st.global.u32 [%x0], %r2; ret; }";
    common::at_every_level(text, "k", [32, 1, 1], |kernel| {
        let mut out = vec![0u32; 32];
        kernel.run(common::Launch::grid(1, 1, 1), common::Args::new().slice(&mut out));
        for (found, t) in out.iter().zip(0u32..) {
            let (first, second, borrow) = (u32::from(t >= 16), u32::from(t > 5), u32::from(t < 9));
            assert_eq!(*found, ((2 * first + second) * 16).wrapping_sub(borrow), "thread {t}");
        }
    });
}
