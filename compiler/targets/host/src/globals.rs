//! Module variables: `.global` and `.const` arrays, defined once in the object and shared by its kernels.

use crate::emit::quoted;
use crate::error::HostError;
use atoll_ptx::{Immediate, Initializer, ItemKind, Linkage, Module, Name, ScalarType, StateSpace, Variable};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Largest module variable; anything larger belongs in a buffer of the kernel graph.
const MAX_BYTES: u64 = 64 << 20;

/// Definitions of the variables of a module.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    definitions: BTreeMap<Name, String>,
}

impl Globals {
    /// How a kernel's module declares one.
    pub(crate) fn declaration(&self, name: &Name) -> String {
        format!("@{} = external hidden global i8\n", symbol(name))
    }

    /// All definitions.
    pub(crate) fn all_definitions(&self) -> String {
        self.definitions.values().map(String::as_str).collect()
    }
}

fn symbol(name: &str) -> String {
    quoted(&format!("atoll_var_{name}"))
}

/// Collects the variables of a module.
pub(crate) fn definitions(module: &Module) -> Result<Globals, HostError> {
    let mut globals = Globals::default();
    for item in &module.items {
        let ItemKind::Variable(variable) = &item.kind else { continue };
        if matches!(variable.space, StateSpace::Global | StateSpace::Const) {
            let text = definition(variable, item.origin.line)?;
            globals.definitions.insert(variable.name.clone(), text);
        }
    }
    Ok(globals)
}

fn definition(variable: &Variable, line: u32) -> Result<String, HostError> {
    let unsupported = |what: String| HostError::Unsupported { kernel: variable.name.clone(), line, what };
    if variable.linkage == Linkage::Extern {
        return Err(unsupported("variables defined in another module".into()));
    }
    let mut bytes = Vec::new();
    if let Some(initializer) = &variable.initializer {
        append(initializer, variable.ty, &mut bytes).ok_or_else(|| unsupported("addresses in initialisers".into()))?;
    }
    let declared =
        variable.bytes().filter(|b| *b <= MAX_BYTES).ok_or_else(|| unsupported(format!("module variables above {MAX_BYTES} bytes")))?;
    // An array without a size has that of its initialiser.
    let size = if declared == 0 { bytes.len() } else { declared as usize };
    bytes.resize(size, 0);
    let kind = if variable.space == StateSpace::Const { "constant" } else { "global" };
    let value = if bytes.iter().all(|b| *b == 0) { "zeroinitializer".to_owned() } else { literal(&bytes) };
    Ok(format!("@{} = hidden {kind} [{size} x i8] {value}, align {}\n", symbol(&variable.name), variable.alignment().max(16)))
}

/// Appends the bytes of an initialiser; `None` where it holds an address.
fn append(initializer: &Initializer, ty: ScalarType, bytes: &mut Vec<u8>) -> Option<()> {
    match initializer {
        Initializer::List(items) => items.iter().try_for_each(|i| append(i, ty, bytes)),
        Initializer::Symbol { .. } => None,
        Initializer::Immediate(value) => {
            let bits: i128 = match (value, ty) {
                (Immediate::Int(v), _) => *v,
                (Immediate::F32(b), ScalarType::F64) => f64::from(f32::from_bits(*b)).to_bits().into(),
                (Immediate::F32(b), _) => (*b).into(),
                (Immediate::F64(b), ScalarType::F32) => (f64::from_bits(*b) as f32).to_bits().into(),
                (Immediate::F64(b), _) => (*b).into(),
            };
            bytes.extend_from_slice(&bits.to_le_bytes()[..ty.bytes() as usize]);
            Some(())
        }
    }
}

/// Bytes as an LLVM string.
fn literal(bytes: &[u8]) -> String {
    let mut text = String::from("c\"");
    for byte in bytes {
        let _ = write!(text, "\\{byte:02X}");
    }
    text + "\""
}
