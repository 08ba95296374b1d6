//! Address checks that are lowered as one instruction trap exactly where the individual comparisons
//! do.

use crate::common::{Args, Launch, levels, try_compile};

/// Forms of addresses, computed per lane from the uniform register `%a`.
const ADDRESSES: [&str; 7] = [
    "mov.u64 %x, %a;",
    "mad.lo.s64 %x, %t, 4, %a;",
    "mad.lo.s64 %x, %t, -8, %a;",
    "mad.lo.s64 %x, %t, 0x2000000000000000, %a;",
    "mad.lo.s64 %x, %t, 0x0100000000000000, %a;",
    "xor.b64 %x, %t, 5; mad.lo.s64 %x, %x, 4, %a;",
    "mad.lo.s64 %x, %t, 4, %a; setp.gt.u32 %g, %r, 20; @%g add.s64 %x, %x, 64;",
];

/// Comparisons and the guard of the trap; lanes 7 to 40 make the access.
const BOUNDS: [&str; 5] = [
    "sub.s64 %o, %x, %b; setp.gt.u64 %p, %o, %l;",
    "sub.s64 %o, %x, %b; setp.gt.and.u64 %p, %o, %l, %made;",
    "sub.s64 %o, %x, %b; setp.gt.and.u64 %p, %o, %l, !%made;",
    "sub.s64 %o, %x, %b; setp.gt.u64 %p, %o, %l; sub.s64 %o, %x, %c; setp.gt.and.u64 %p, %o, %m, %p;",
    "sub.s64 %o, %x, %b; setp.gt.and.u64 %p, %o, %l, %made; sub.s64 %o, %x, %c; setp.gt.and.u64 %p, %o, %m, %p;",
];

/// The kernel; `between` is code between comparisons and trap.
fn kernel(address: &str, bounds: &str, between: &str) -> String {
    format!(
        ".visible .entry k(.param .u64 a, .param .u64 b, .param .u64 l, .param .u64 c, .param .u64 m, .param .u32 \
         n)\n{{\n\
         .reg .pred %p; .reg .pred %g; .reg .pred %made; .reg .b32 %r; .reg .b32 %n; .reg .b64 %t; .reg .b64 %x; \
         .reg .b64 %o;\n\
         .reg .b64 %a; .reg .b64 %b; .reg .b64 %l; .reg .b64 %c; .reg .b64 %m;\n\
         ld.param.u64 %a, [a]; ld.param.u64 %b, [b]; ld.param.u64 %l, [l]; ld.param.u64 %c, [c]; \
         ld.param.u64 %m, [m]; ld.param.u32 %n, [n];\n\
         mov.u32 %r, %tid.x; cvt.u64.u32 %t, %r;\n\
         setp.ge.u32 %made, %r, %n; @%made bra $end;\n\
         sub.u32 %n, %r, 7; setp.lt.u32 %made, %n, 34;\n\
         {address}\n{bounds} {between} @%p trap;\n$end: ret;\n}}"
    )
}

#[test]
fn bounds_trap_where_their_comparisons_do() {
    let near = |edge: u64| [-256_i64, -124, -4, -1, 0, 1, 4, 60, 124].map(|by| edge.wrapping_add(by as u64));
    let ranges =
        [(0x1000_u64, 0xFFF_u64, 0x4000_u64, 0xFF_u64), (0, 3, u64::MAX - 3, 3), (1 << 63, 1 << 60, 0x1000, 1 << 62)];
    let (mut trapped, mut passed) = (0, 0);
    for (level, address) in levels().into_iter().flat_map(|level| ADDRESSES.map(|address| (level, address))) {
        for bounds in BOUNDS {
            let compile = |between| {
                try_compile(&kernel(address, bounds, between), "k", [48, 1, 1], level).unwrap_or_else(|e| panic!("{e}"))
            };
            // A predicate that passes through one more instruction is not recognised.
            let (whole, apart) = (compile(""), compile("or.pred %p, %p, %p;"));
            for (b, l, c, m) in ranges {
                for a in [near(b), near(b.wrapping_add(l)), near(c), near(c.wrapping_add(m))].concat() {
                    for n in [48, 33, 20, 0] {
                        let args = || Args::new().u64(a).u64(b).u64(l).u64(c).u64(m).u32(n);
                        let expected = apart.run(Launch::grid(1, 1, 1), args()).is_some();
                        let found = whole.run(Launch::grid(1, 1, 1), args()).is_some();
                        assert_eq!(
                            found, expected,
                            "{address}\n{bounds}\na {a:#x}, b {b:#x}, l {l:#x}, c {c:#x}, m {m:#x}, n {n}"
                        );
                        if found { trapped += 1 } else { passed += 1 }
                    }
                }
            }
        }
    }
    assert!(levels().is_empty() || (trapped > 1000 && passed > 1000), "{trapped} trapped, {passed} did not");
}

#[test]
fn bounds_are_recognised() {
    for level in levels() {
        for bounds in BOUNDS {
            let kernel = try_compile(&kernel(ADDRESSES[1], bounds, ""), "k", [64, 1, 1], level)
                .unwrap_or_else(|e| panic!("{e}"));
            assert!(kernel.facts.ir.as_ref().is_some_and(|ir| ir.contains("inside")), "{bounds}");
        }
    }
}
