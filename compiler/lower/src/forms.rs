//! The modifiers of each instruction that lowering implements.
//!
//! A kernel is rejected if it uses an opcode without a row, or a modifier that is missing from the
//! row of its opcode. No modifier is therefore ignored silently. Types are not listed: the code
//! that lowers an instruction checks them.

use crate::program::{Inst, Opnd};
use atoll_ptx::ScalarType;

/// Rounding modes of results.
const ROUNDINGS: &str = "rn rz rm rp";
/// Comparisons of `set` and `setp`, and the operations that combine them with a predicate.
const COMPARISONS: &str = "eq ne lt le gt ge lo ls hi hs equ neu ltu leu gtu geu num nan and or xor ftz";
/// State spaces of loads, stores and atomics.
const SPACES: &str = "global shared shared::cta shared::cluster local const param param::entry param::func";
/// Memory orders and scopes, which are implemented, and cache hints, which have no effect here.
const ACCESS: &str = "weak volatile relaxed acquire release acq_rel mmio cta cluster gpu sys unified \
    nc ca cg cs lu cv wb wt L1::evict_normal L1::evict_unchanged L1::evict_first L1::evict_last L1::no_allocate \
    L2::evict_normal L2::evict_first L2::evict_last L2::cache_hint L2::64B L2::128B L2::256B";

/// Shapes of matrix products.
const SHAPES: &str = "m8n8k4 m16n8k4 m16n8k8 m16n8k16 m16n8k32 m8n8k16 m16n16k16 m16n16k8 m32n8k16 m8n32k16";

/// Opcodes, separated by blanks, and the modifiers they may have.
const FORMS: &[(&str, &[&str])] = &[
    ("add sub", &["cc sat ftz", ROUNDINGS]),
    ("addc subc", &["cc"]),
    ("mul", &["lo hi wide sat ftz", ROUNDINGS]),
    ("mad", &["lo hi wide cc sat ftz", ROUNDINGS]),
    ("madc", &["lo hi cc"]),
    ("fma", &["sat ftz relu", ROUNDINGS]),
    ("mul24", &["lo hi"]),
    ("mad24", &["lo hi sat"]),
    ("div rcp sqrt", &["approx full ftz", ROUNDINGS]),
    ("rsqrt sin cos lg2 ex2 tanh", &["approx ftz"]),
    ("rem sad popc clz brev bfe bfi dp4a not cnot shl shr fns copysign selp", &[]),
    ("abs neg", &["ftz"]),
    ("min max", &["ftz NaN xorsign abs relu"]),
    ("bfind", &["shiftamt"]),
    ("bmsk szext", &["clamp wrap"]),
    ("shf", &["l r clamp wrap"]),
    ("dp2a", &["lo hi"]),
    ("vadd vsub vabsdiff vmin vmax", &["sat add min max"]),
    ("vshl vshr", &["clamp wrap sat add min max"]),
    ("vmad", &["sat po shr7 shr15"]),
    ("vset", &["eq ne lt le gt ge add min max"]),
    ("vadd2 vadd4 vsub2 vsub4 vavrg2 vavrg4 vabsdiff2 vabsdiff4 vmin2 vmin4 vmax2 vmax4", &["sat add"]),
    ("vset2 vset4", &["eq ne lt le gt ge add"]),
    ("and or xor", &[]),
    ("lop3", &["and or"]),
    ("prmt", &["f4e b4e rc8 ecl ecr rc16"]),
    ("testp", &["finite infinite number notanumber normal subnormal"]),
    ("set setp", &[COMPARISONS]),
    ("slct", &["ftz"]),
    ("mov", &["v2 v4"]),
    ("cvt", &["pack rni rzi rmi rpi rna ftz sat relu satfinite e4m3x2 e5m2x2", ROUNDINGS]),
    ("cvta", &["to", SPACES]),
    ("isspacep", &[SPACES]),
    ("ld ldu st", &["v2 v4 v8", SPACES, ACCESS]),
    ("atom red", &["add and or xor exch min max inc dec cas noftz v2 v4 v8", SPACES, ACCESS]),
    ("shfl", &["sync up down bfly idx"]),
    ("vote", &["sync all any uni ballot"]),
    ("redux", &["sync add min max and or xor"]),
    ("match", &["sync any all"]),
    ("activemask trap brkpt exit ret nanosleep pmevent vprintf __assertfail", &[]),
    ("bar barrier", &["cta warp sync arrive red popc and or aligned"]),
    (
        "membar fence",
        &["cta cluster gl gpu sys sc acq_rel acquire release proxy alias async global shared::cta shared::cluster"],
    ),
    // Hints and their modifiers.
    ("prefetch prefetchu applypriority discard", &[SPACES, "L1 L2 L2::evict_last L2::evict_normal tensormap"]),
    ("createpolicy", &["fractional range cvt L2", ACCESS]),
    ("griddepcontrol", &["launch_dependents wait"]),
    (
        "cp",
        &["async ca cg commit_group wait_group wait_all shared shared::cta shared::cluster global \
             L2::cache_hint L2::64B L2::128B L2::256B"],
    ),
    // Products of f64 may state round-to-nearest.
    ("mma", &["sync aligned row col satfinite rn", SHAPES]),
    ("wmma", &["mma load store a b c d sync aligned row col satfinite rn", SHAPES, SPACES]),
    ("ldmatrix stmatrix movmatrix", &["sync aligned m8n8 x1 x2 x4 trans shared shared::cta"]),
];

/// Instructions on objects that no target of this crate has, by opcode.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("tex tld4 txq istypep", "textures"),
    ("suld sust sured suq", "surfaces"),
    ("tensormap", "tensor maps"),
    ("tcgen05", "tensor memory"),
    ("wgmma", "asynchronous matrix products"),
    ("multimem", "multicast memory"),
    ("mapa getctarank clusterlaunchcontrol", "thread block clusters"),
    ("mbarrier", "barriers in memory"),
    ("alloca stacksave stackrestore", "memory that grows with the stack"),
];

/// Instructions that accept a vector of values or registers as one operand.
const TAKES_VECTORS: &str = "mov ld ldu st atom red mma wmma ldmatrix stmatrix cvt cp";

/// The row of an opcode.
fn row(opcode: &str) -> Option<&'static [&'static str]> {
    FORMS.iter().find(|(opcodes, _)| opcodes.split(' ').any(|o| opcode == o)).map(|row| row.1)
}

/// Whether some form of an opcode can be lowered.
pub fn is_known(opcode: &str) -> bool {
    row(opcode).is_some()
}

/// The kind of object that an opcode works on and that no target here has.
pub(crate) fn unsupported_object(opcode: &str) -> Option<&'static str> {
    UNSUPPORTED.iter().find(|(opcodes, _)| opcodes.split(' ').any(|o| opcode == o)).map(|row| row.1)
}

/// Whether an opcode is a video instruction, scalar or SIMD.
pub fn is_video(opcode: &str) -> bool {
    opcode.starts_with('v') && !matches!(opcode, "vote" | "vprintf")
}

/// The kind of an operand that the instruction does not accept.
pub(crate) fn misplaced(opcode: &str, operand: &Opnd) -> Option<&'static str> {
    let is_plain = |inner: &Opnd| !matches!(inner, Opnd::Vec(_) | Opnd::Part(..) | Opnd::Negated(_));
    let (fits, what) = match operand {
        Opnd::Vec(parts) => {
            (TAKES_VECTORS.split(' ').any(|o| o == opcode) && parts.iter().all(is_plain), "vector like this")
        }
        Opnd::Part(..) => (is_video(opcode), "part of a register"),
        Opnd::Negated(_) => (opcode == "vmad", "negated register"),
        Opnd::Pair(first, second) => (is_plain(first) && is_plain(second), "pair like this"),
        Opnd::Addr(base, _) => (is_plain(base), "address like this"),
        _ => (true, ""),
    };
    (!fits).then_some(what)
}

/// The first modifier that lowering would ignore.
pub fn unknown_modifier(inst: &Inst) -> Option<&str> {
    let words = row(&inst.form.opcode)?;
    let is_known = |m: &str| {
        let packed = matches!(m, "u16x2" | "s16x2");
        packed
            || ScalarType::from_name(m).is_some()
            || words.iter().any(|list| list.split_ascii_whitespace().any(|w| w == m))
    };
    inst.form.modifiers.iter().map(|m| m.as_str()).find(|m| !is_known(m))
}
