//! The effect of each instruction on memory, as one table; an opcode that is not in it counts as
//! unknown.

use atoll_ptx::{Immediate, Instruction, Operand, ScalarType, StateSpace};

/// The effect of an instruction, other than writing registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// No effect beyond the block: arithmetic, barriers, matrices in shared memory.
    Nothing,
    /// Reads or writes memory.
    Access(MemoryAct),
    /// Calls a function.
    Call,
    /// An effect that the analyses do not model; the text names the group of instructions.
    Unsupported(&'static str),
}

/// One access to memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MemoryAct {
    pub(crate) reads: bool,
    pub(crate) writes: bool,
    /// Read-modify-write: `atom`, `red`.
    pub(crate) atomic: bool,
    /// Communicates with other threads or the host: `volatile`, `relaxed`, `acquire`, `release`,
    /// `mmio`, `.cv`.
    pub(crate) strong: bool,
    /// The state space; `None` for generic addresses.
    pub(crate) space: Option<StateSpace>,
    /// Index of the address operand.
    pub(crate) address: usize,
    /// Bytes accessed from the address on; `None` if a stride determines them.
    pub(crate) bytes: Option<u64>,
}

/// Opcodes that only compute, wait for threads of their own block, or branch.
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

/// Opcodes that access only shared memory of the block.
const SHARED_ONLY: &[&str] = &["ldmatrix", "stmatrix", "mbarrier"];

/// Opcodes that are known but not modelled, and their group of instructions.
const UNSUPPORTED: &[(&str, &str)] = &[
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
    ("discard", "discarded cache lines"),
];

/// The effect of an instruction.
pub(crate) fn act(instruction: &Instruction) -> Act {
    let opcode = instruction.opcode.as_str();
    if instruction.modifiers.iter().any(|m| m.ends_with("::cluster"))
        || instruction.has("cluster") && opcode == "barrier"
    {
        return Act::Unsupported("thread block clusters");
    }
    if let Some((_, what)) = UNSUPPORTED.iter().find(|(name, _)| *name == opcode) {
        return Act::Unsupported(what);
    }
    match opcode {
        "call" => Act::Call,
        "barrier" => Act::Nothing,
        "fence" if instruction.has("tensormap::generic") || instruction.has("tensormap") => {
            Act::Unsupported("tensor maps")
        }
        "fence" => Act::Nothing,
        "prefetch" | "prefetchu" if instruction.has("tensormap") => Act::Unsupported("tensor maps"),
        _ if instruction.has("async") && matches!(opcode, "st" | "red") => Act::Unsupported("thread block clusters"),
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
        _ => Act::Unsupported("unknown instructions"),
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

/// `cp.async.ca.shared.global [to], [from], 16;` reads global memory and writes shared memory.
fn copy(instruction: &Instruction) -> Act {
    if !instruction.has("async") || instruction.has("bulk") || instruction.has("reduce") {
        return Act::Unsupported("bulk copies");
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

/// Type of the value that an access transfers per register.
pub(crate) fn element(instruction: &Instruction) -> ScalarType {
    instruction.ty().unwrap_or(ScalarType::B64)
}
