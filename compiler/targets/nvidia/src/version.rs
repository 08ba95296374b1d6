//! The lowest `.version` that a module needs.
//!
//! A driver assembles PTX up to the version it was released with and rejects newer versions, so a
//! module should declare no more than it uses. A module with an instruction that is not in this
//! table keeps the version it declares.

use atoll_ptx::{Body, Directive, Instruction, ItemKind, Module, Name, Operand, ScalarType, StatementKind};
use std::fmt;

/// A version of the PTX ISA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PtxVersion {
    /// 7 in 7.0.
    pub major: u32,
    /// 0 in 7.0.
    pub minor: u32,
}

impl fmt::Display for PtxVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Version `major.minor`.
const fn v(major: u32, minor: u32) -> PtxVersion {
    PtxVersion { major, minor }
}

/// The first version that supports each architecture (PTX ISA, "Release History"), ascending.
const ARCHITECTURES: [(u32, PtxVersion); 14] = [
    (70, v(6, 0)),
    (72, v(6, 1)),
    (75, v(6, 3)),
    (80, v(7, 0)),
    (86, v(7, 1)),
    (87, v(7, 4)),
    (88, v(9, 0)),
    (89, v(7, 8)),
    (90, v(7, 8)),
    (100, v(8, 6)),
    (103, v(8, 8)),
    (110, v(9, 0)),
    (120, v(8, 7)),
    (121, v(8, 8)),
];

/// Opcodes that every version since 6.0 supports, except those in [`YOUNGER_OPCODES`].
const OPCODES: [&str; 77] = [
    "abs",
    "activemask",
    "add",
    "addc",
    "and",
    "atom",
    "bar",
    "barrier",
    "bfe",
    "bfi",
    "bfind",
    "bra",
    "brev",
    "brkpt",
    "call",
    "clz",
    "cnot",
    "copysign",
    "cos",
    "cvt",
    "cvta",
    "div",
    "dp2a",
    "dp4a",
    "ex2",
    "exit",
    "fence",
    "fma",
    "fns",
    "isspacep",
    "ld",
    "ldu",
    "lg2",
    "lop3",
    "mad",
    "mad24",
    "madc",
    "match",
    "max",
    "membar",
    "min",
    "mov",
    "mul",
    "mul24",
    "neg",
    "not",
    "or",
    "pmevent",
    "popc",
    "prefetch",
    "prefetchu",
    "prmt",
    "rcp",
    "red",
    "rem",
    "ret",
    "rsqrt",
    "sad",
    "selp",
    "set",
    "setp",
    "shf",
    "shfl",
    "shl",
    "shr",
    "sin",
    "slct",
    "sqrt",
    "st",
    "sub",
    "subc",
    "testp",
    "trap",
    "vote",
    "xor",
    "nanosleep",
    "brx",
];

/// Opcodes, from the list above or not, that a later version introduced.
const YOUNGER_OPCODES: [(&str, PtxVersion); 13] = [
    ("activemask", v(6, 2)),
    ("brx", v(6, 0)),
    ("bmsk", v(7, 6)),
    ("cp", v(7, 0)),
    ("createpolicy", v(7, 4)),
    ("ldmatrix", v(6, 5)),
    ("mbarrier", v(7, 0)),
    ("mma", v(7, 0)),
    ("nanosleep", v(6, 3)),
    ("redux", v(7, 0)),
    ("szext", v(7, 6)),
    ("tanh", v(7, 0)),
    ("wmma", v(7, 0)),
];

/// Modifiers that every version since 6.0 supports, without types.
const MODIFIERS: [&str; 106] = [
    "acq_rel",
    "acquire",
    "add",
    "aligned",
    "all",
    "and",
    "any",
    "approx",
    "arrive",
    "b",
    "ballot",
    "bfly",
    "bra",
    "ca",
    "cas",
    "cc",
    "cg",
    "clamp",
    "const",
    "cs",
    "cta",
    "cv",
    "dec",
    "down",
    "eq",
    "equ",
    "exch",
    "finite",
    "ftz",
    "full",
    "ge",
    "geu",
    "gl",
    "global",
    "gpu",
    "gt",
    "gtu",
    "hi",
    "hs",
    "idx",
    "inc",
    "infinite",
    "l",
    "L1",
    "L2",
    "le",
    "leu",
    "level",
    "lo",
    "local",
    "ls",
    "lt",
    "ltu",
    "lu",
    "max",
    "min",
    "nan",
    "nc",
    "ne",
    "neu",
    "normal",
    "notanumber",
    "num",
    "number",
    "or",
    "param",
    "popc",
    "r",
    "red",
    "relaxed",
    "release",
    "rm",
    "rmi",
    "rn",
    "rni",
    "rp",
    "rpi",
    "rz",
    "rzi",
    "sat",
    "sc",
    "shared",
    "shiftamt",
    "subnormal",
    "sync",
    "sys",
    "to",
    "trap",
    "u",
    "uni",
    "up",
    "v2",
    "v4",
    "volatile",
    "warp",
    "wb",
    "weak",
    "wide",
    "wrap",
    "wt",
    "xor",
    "f4e",
    "b4e",
    "rc8",
    "ecl",
    "ecr",
];

/// Modifiers that a later version introduced.
const YOUNGER_MODIFIERS: [(&str, PtxVersion); 25] = [
    ("NaN", v(7, 0)),
    ("relu", v(7, 0)),
    ("rna", v(7, 0)),
    ("async", v(7, 0)),
    ("commit_group", v(7, 0)),
    ("wait_group", v(7, 0)),
    ("wait_all", v(7, 0)),
    ("noftz", v(6, 3)),
    ("m8n8", v(6, 5)),
    ("x1", v(6, 5)),
    ("x2", v(6, 5)),
    ("x4", v(6, 5)),
    ("trans", v(6, 5)),
    // Modifiers of matrix products; other shapes and types are not in the table.
    ("a", v(6, 0)),
    ("c", v(6, 0)),
    ("col", v(6, 0)),
    ("d", v(6, 0)),
    ("load", v(6, 0)),
    ("m16n16k16", v(6, 0)),
    ("m16n8k16", v(7, 0)),
    ("m16n8k32", v(7, 0)),
    ("m16n8k8", v(7, 0)),
    ("mma", v(6, 0)),
    ("row", v(6, 0)),
    ("store", v(6, 0)),
];

/// Opcodes whose half-precision or `bf16` form was introduced later than the opcode.
const HALF_FORMS: [(&str, PtxVersion); 6] =
    [("abs", v(6, 5)), ("neg", v(6, 0)), ("max", v(7, 0)), ("min", v(7, 0)), ("ex2", v(7, 0)), ("tanh", v(7, 0))];

/// The lowest version that supports the module's architecture and everything in the module; `None`
/// if something is not in the tables.
pub fn lowest_version(module: &Module) -> Option<PtxVersion> {
    let sm = declared_sm(module)?;
    let mut version = ARCHITECTURES.iter().find(|(known, _)| *known == sm)?.1;
    for function in module.functions() {
        if function
            .attributes
            .iter()
            .any(|a| !matches!(a.name.as_str(), "maxntid" | "reqntid" | "minnctapersm" | "maxnreg"))
        {
            return None;
        }
        if let Some(body) = &function.body {
            version = version.max(needed_by_body(body)?);
        }
    }
    Some(version)
}

fn needed_by_body(body: &Body) -> Option<PtxVersion> {
    let mut needed = body.statements.iter().map(|statement| match &statement.kind {
        StatementKind::Instruction(instruction) => needed_by(instruction),
        StatementKind::Block(inner) => needed_by_body(inner),
        StatementKind::Directive(directive) => needed_by_directive(directive),
        _ => Some(v(6, 0)),
    });
    needed.try_fold(v(6, 0), |version, needed| Some(version.max(needed?)))
}

/// Line information and hints have no effect, but an assembler rejects those that are newer than
/// the declared version.
fn needed_by_directive(directive: &Directive) -> Option<PtxVersion> {
    match directive.name.as_str() {
        "loc" if directive.arguments.iter().any(|word| *word == "inlined_at") => Some(v(7, 0)),
        "pragma" => directive.arguments.iter().all(|hint| hint.contains("nounroll")).then_some(v(6, 0)),
        _ => Some(v(6, 0)),
    }
}

fn needed_by(instruction: &Instruction) -> Option<PtxVersion> {
    if instruction.operands.iter().any(names_young_register) {
        return None;
    }
    let opcode = instruction.opcode.as_str();
    let younger = YOUNGER_OPCODES.iter().find(|(name, _)| *name == opcode).map(|(_, version)| *version);
    let mut version = younger.or_else(|| OPCODES.contains(&opcode).then_some(v(6, 0)))?;
    for modifier in &instruction.modifiers {
        version = version.max(needed_by_modifier(opcode, modifier)?);
    }
    Some(version)
}

/// Whether an operand is a special register introduced with clusters or later.
fn names_young_register(operand: &Operand) -> bool {
    const YOUNG: [&str; 5] =
        ["%cluster", "%nclusterid", "%is_explicit_cluster", "%reserved_smem", "%current_graph_exec"];
    matches!(operand, Operand::Name(name) if YOUNG.iter().any(|prefix| name.starts_with(prefix)))
}

fn needed_by_modifier(opcode: &str, modifier: &Name) -> Option<PtxVersion> {
    use ScalarType::{B128, Bf16, Bf16x2, F16, F16x2, F64, Tf32};
    match ScalarType::from_name(modifier) {
        Some(F16 | F16x2) => {
            Some(HALF_FORMS.iter().find(|(name, _)| *name == opcode).map_or(v(6, 0), |(_, version)| *version))
        }
        Some(Bf16 | Bf16x2) => Some(v(7, 8)),
        Some(Tf32) => Some(v(7, 0)),
        Some(F64) if opcode == "mma" => Some(v(7, 8)),
        Some(B128) => None,
        Some(_) => Some(v(6, 0)),
        None if MODIFIERS.contains(&modifier.as_str()) => Some(v(6, 0)),
        None => YOUNGER_MODIFIERS.iter().find(|(name, _)| name == modifier).map(|(_, version)| *version),
    }
}

/// The version that a module declares.
pub fn declared_version(module: &Module) -> Option<PtxVersion> {
    let text = directive(module, "version")?.arguments.concat();
    let (major, minor) = text.split_once('.')?;
    Some(v(major.parse().ok()?, minor.parse().ok()?))
}

/// The architecture that a module declares: 75 for `.target sm_75`; `None` for
/// architecture-specific variants (`sm_90a`).
pub fn declared_sm(module: &Module) -> Option<u32> {
    directive(module, "target")?.arguments.first()?.strip_prefix("sm_")?.parse().ok()
}

fn directive<'m>(module: &'m Module, name: &str) -> Option<&'m Directive> {
    module.items.iter().find_map(|item| match &item.kind {
        ItemKind::Directive(directive) if directive.name == name => Some(directive),
        _ => None,
    })
}

/// The module with another `.version`, if it declares one.
pub(crate) fn with_version(module: &Module, version: PtxVersion) -> Module {
    let mut module = module.clone();
    for item in &mut module.items {
        if matches!(&item.kind, ItemKind::Directive(d) if d.name == "version")
            && let ItemKind::Directive(directive) = item.edit()
        {
            directive.arguments = vec![Name::from(version.to_string())];
        }
    }
    module
}
