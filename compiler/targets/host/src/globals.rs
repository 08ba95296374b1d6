//! Module variables: `.global` and `.const` arrays, defined once in the object and shared by its
//! kernels.

use crate::emit::quoted;
use crate::error::HostError;
use atoll_lower::LowerError;
use atoll_lower::variables::{self, Value};
use atoll_ptx::{Linkage, Module, Name, StateSpace, Variable};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Limit on the size of a module variable; larger data belongs in a buffer of the kernel graph.
const MAX_BYTES: u64 = 64 << 20;

/// Definitions of the variables of a module.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    definitions: BTreeMap<Name, String>,
}

impl Globals {
    /// The declaration of a variable in a kernel's LLVM module.
    pub(crate) fn declaration(&self, name: &Name) -> String {
        format!("@{} = external hidden global i8\n", symbol(name))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.definitions.is_empty()
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
    for (name, variable, line) in variables::all(module) {
        let text = definition(module, &name, variable, line)?;
        globals.definitions.insert(name, text);
    }
    Ok(globals)
}

fn definition(module: &Module, name: &Name, variable: &Variable, line: u32) -> Result<String, HostError> {
    let unsupported =
        |what: String| LowerError::Unsupported { target: crate::TARGET, kernel: variable.name.clone(), line, what };
    if variable.linkage == Linkage::Extern {
        return Err(unsupported("variables defined in another module".into()).into());
    }
    let mut value = Value::of(module, variable).map_err(unsupported)?;
    let declared = variable
        .bytes()
        .filter(|b| *b <= MAX_BYTES)
        .ok_or_else(|| unsupported(format!("module variables above {MAX_BYTES} bytes")))?;
    // An array without a size has the size of its initialiser.
    let size = if declared == 0 { value.bytes.len() } else { declared as usize };
    if value.bytes.len() > size {
        return Err(unsupported("an initialiser larger than its variable".into()).into());
    }
    value.bytes.resize(size, 0);
    // Addresses are relocated when the object is loaded, so the variable must be writable.
    let kind = if variable.space == StateSpace::Const && value.addresses.is_empty() { "constant" } else { "global" };
    Ok(format!("@{} = hidden {kind} {}, align {}\n", symbol(name), typed_literal(&value), variable.alignment().max(16)))
}

/// A value in LLVM's syntax, with its type.
fn typed_literal(value: &Value) -> String {
    let plain = |bytes: &[u8]| match bytes.iter().all(|b| *b == 0) {
        true => format!("[{} x i8] zeroinitializer", bytes.len()),
        false => format!("[{} x i8] {}", bytes.len(), literal(bytes)),
    };
    if value.addresses.is_empty() {
        return plain(&value.bytes);
    }
    let (mut types, mut parts, mut from) = (Vec::new(), Vec::new(), 0);
    let mut bytes_until = |from: usize, to: usize, parts: &mut Vec<String>| {
        if from < to {
            types.push(format!("[{} x i8]", to - from));
            parts.push(plain(&value.bytes[from..to]));
        }
        types.push("ptr".into());
    };
    for (at, name, offset) in &value.addresses {
        bytes_until(from, *at, &mut parts);
        parts.push(format!("ptr getelementptr (i8, ptr @{}, i64 {offset})", symbol(name)));
        from = at + 8;
    }
    bytes_until(from, value.bytes.len(), &mut parts);
    types.pop();
    format!("<{{ {} }}> <{{ {} }}>", types.join(", "), parts.join(", "))
}

/// Bytes as an LLVM string.
fn literal(bytes: &[u8]) -> String {
    let mut text = String::from("c\"");
    for byte in bytes {
        let _ = write!(text, "\\{byte:02X}");
    }
    text + "\""
}
