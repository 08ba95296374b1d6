//! What each instruction does to memory: one table, and what is not in it is not known.

use atoll_ptx::{Immediate, Instruction, Operand, ScalarType, StateSpace};

/// What an instruction does beside computing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Nothing that outlasts the block: arithmetic, barriers, matrices in shared memory.
    Nothing,
    /// Reads or writes memory.
    Access(MemoryAct),
    /// Calls a function.
    Call,
    /// Something that no analysis here follows; the words say what it belongs to.
    Unfollowed(&'static str),
}

/// One access to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryAct {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// Read and write are one: `atom`, `red`.
    pub(crate) atomic: bool,
    /// Takes part in the talk between threads or with the host: `volatile`, `relaxed`, `acquire`,
    /// `release`, `mmio`, `.cv`.
    pub(crate) strong: bool,
    /// The state space, `None` for generic addresses.
    pub(crate) space: Option<StateSpace>,
    /// Which operand is the address.
    pub(crate) address: usize,
    /// How many bytes from there on; `None` where a stride decides.
    pub(crate) bytes: Option<u64>,
}

/// Opcodes that only compute, wait for threads of their own block, or steer.
const COMPUTE: &[&str] = &[
    "mov",
    "cvt",
    "cvta",
    "add",
    "sub",
    "mul",
    "mad",
    "mul24",
    "mad24",
    "sad",
    "div",
    "rem",
    "abs",
    "neg",
    "min",
    "max",
    "popc",
    "clz",
    "bfind",
    "fns",
    "brev",
    "bfe",
    "bfi",
    "szext",
    "bmsk",
    "dp4a",
    "dp2a",
    "fma",
    "rcp",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "lg2",
    "ex2",
    "tanh",
    "testp",
    "copysign",
    "set",
    "setp",
    "selp",
    "slct",
    "and",
    "or",
    "xor",
    "not",
    "cnot",
    "lop3",
    "shf",
    "shl",
    "shr",
    "prmt",
    "addc",
    "subc",
    "madc",
    "vadd",
    "vsub",
    "vabsdiff",
    "vmin",
    "vmax",
    "vshl",
    "vshr",
    "vmad",
    "vset",
    "bra",
    "brx",
    "ret",
    "exit",
    "trap",
    "brkpt",
    "pmevent",
    "isspacep",
    "bar",
    "membar",
    "shfl",
    "vote",
    "match",
    "redux",
    "activemask",
    "elect",
    "nanosleep",
    "mma",
    "movmatrix",
    "createpolicy",
    "setmaxnreg",
    "alloca",
    "stacksave",
    "stackrestore",
    "prefetch",
    "prefetchu",
    "applypriority",
];

/// Opcodes that only touch shared memory of the block.
const SHARED_ONLY: &[&str] = &["ldmatrix", "stmatrix", "mbarrier"];

/// Opcodes that are known and not followed, and what they belong to.
const UNFOLLOWED: &[(&str, &str)] = &[
    ("tex", "textures"),
    ("tld4", "textures"),
    ("txq", "textures"),
    ("istypep", "textures"),
    ("suld", "surfaces"),
    ("sust", "surfaces"),
    ("sured", "surfaces"),
    ("suq", "surfaces"),
    ("tensormap", "tensor maps"),
    ("tcgen05", "tensor memory"),
    ("wgmma", "asynchronous matrix products"),
    ("multimem", "multicast memory"),
    ("mapa", "thread block clusters"),
    ("getctarank", "thread block clusters"),
    ("clusterlaunchcontrol", "thread block clusters"),
    ("griddepcontrol", "dependent launches"),
    ("discard", "cache lines thrown away"),
];

/// What an instruction does.
pub(crate) fn act(instruction: &Instruction) -> Act {
    let opcode = instruction.opcode.as_str();
    if instruction.modifiers.iter().any(|m| m.ends_with("::cluster"))
        || instruction.has("cluster") && opcode == "barrier"
    {
        return Act::Unfollowed("thread block clusters");
    }
    if let Some((_, what)) = UNFOLLOWED.iter().find(|(name, _)| *name == opcode) {
        return Act::Unfollowed(what);
    }
    match opcode {
        "call" => Act::Call,
        "barrier" => Act::Nothing,
        "fence" if instruction.has("tensormap::generic") || instruction.has("tensormap") => {
            Act::Unfollowed("tensor maps")
        }
        "fence" => Act::Nothing,
        "prefetch" | "prefetchu" if instruction.has("tensormap") => Act::Unfollowed("tensor maps"),
        _ if instruction.has("async") && matches!(opcode, "st" | "red") => Act::Unfollowed("thread block clusters"),
        "ld" | "ldu" => Act::Access(plain(instruction, 1, (true, false))),
        "st" => Act::Access(plain(instruction, 0, (false, true))),
        "atom" => Act::Access(MemoryAct { atomic: true, ..plain(instruction, 1, (true, true)) }),
        "red" => Act::Access(MemoryAct { atomic: true, ..plain(instruction, 0, (true, true)) }),
        "cp" => copy(instruction),
        "wmma" if instruction.has("load") => {
            Act::Access(MemoryAct { bytes: None, ..plain(instruction, 1, (true, false)) })
        }
        "wmma" if instruction.has("store") => {
            Act::Access(MemoryAct { bytes: None, ..plain(instruction, 0, (false, true)) })
        }
        "wmma" => Act::Nothing,
        _ if COMPUTE.contains(&opcode) || SHARED_ONLY.contains(&opcode) => Act::Nothing,
        _ => Act::Unfollowed("instructions not known here"),
    }
}

fn plain(instruction: &Instruction, address: usize, (reads, writes): (bool, bool)) -> MemoryAct {
    const STRONG: [&str; 6] = ["volatile", "relaxed", "acquire", "release", "mmio", "cv"];
    let lanes = instruction.modifiers.iter().find_map(|m| m.strip_prefix('v')?.parse::<u64>().ok()).unwrap_or(1);
    MemoryAct {
        reads,
        writes,
        atomic: false,
        strong: STRONG.iter().any(|word| instruction.has(word)),
        space: instruction.space(),
        address,
        bytes: instruction.ty().map(|ty| u64::from(ty.bytes()) * lanes),
    }
}

/// `cp.async.ca.shared.global [to], [from], 16;` reads global memory; what it writes is shared.
fn copy(instruction: &Instruction) -> Act {
    if !instruction.has("async") || instruction.has("bulk") || instruction.has("reduce") {
        return Act::Unfollowed("bulk copies");
    }
    if !instruction.has("global") {
        return Act::Nothing;
    }
    let bytes = match instruction.operands.get(2) {
        Some(Operand::Immediate(Immediate::Int(bytes))) => u64::try_from(*bytes).ok(),
        _ => None,
    };
    let space = Some(StateSpace::Global);
    Act::Access(MemoryAct { reads: true, writes: false, atomic: false, strong: false, space, address: 1, bytes })
}

/// Bits of the value an access gives or takes per register.
pub(crate) fn element(instruction: &Instruction) -> ScalarType {
    instruction.ty().unwrap_or(ScalarType::B64)
}
