//! Variables of a module: one definition in the code object, under the name of the PTX text, at
//! which a loader finds them.

use crate::emit::quoted;
use crate::error::AmdError;
use atoll_lower::LowerError;
use atoll_lower::variables::{self, Value};
use atoll_ptx::{Linkage, Module, Name, Variable};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Limit on the size of one variable; larger data belongs to the buffers of the kernel graph.
const MAX_BYTES: u64 = 64 << 20;

/// Definitions of the variables of a module.
#[derive(Debug, Default)]
pub(crate) struct Globals {
    definitions: BTreeMap<Name, String>,
}

impl Globals {
    /// All definitions.
    pub(crate) fn text(&self) -> String {
        self.definitions.values().map(String::as_str).collect()
    }
}

/// Collects the variables of a module.
pub(crate) fn definitions(module: &Module) -> Result<Globals, AmdError> {
    let mut globals = Globals::default();
    for (name, variable, line) in variables::all(module) {
        let text = definition(module, &name, variable, line)?;
        globals.definitions.insert(name, text);
    }
    Ok(globals)
}

fn definition(module: &Module, name: &Name, variable: &Variable, line: u32) -> Result<String, AmdError> {
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
    let align = variable.alignment().max(16);
    Ok(format!("@{} = protected addrspace(1) global {}, align {align}\n", quoted(name), typed_literal(&value)))
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
    let (mut all, mut from) = (Vec::new(), 0);
    for (at, name, offset) in &value.addresses {
        if from < *at {
            all.push(plain(&value.bytes[from..*at]));
        }
        all.push(format!("ptr addrspace(1) getelementptr (i8, ptr addrspace(1) @{}, i64 {offset})", quoted(name)));
        from = at + 8;
    }
    if from < value.bytes.len() {
        all.push(plain(&value.bytes[from..]));
    }
    let types: Vec<&str> = all.iter().map(|part| type_of(part)).collect();
    format!("<{{ {} }}> <{{ {} }}>", types.join(", "), all.join(", "))
}

/// The type in front of a literal that [`typed_literal`] has written.
fn type_of(part: &str) -> &str {
    const POINTER: &str = "ptr addrspace(1)";
    if part.starts_with(POINTER) { POINTER } else { part.split_inclusive(']').next().unwrap_or(part) }
}

/// Bytes as an LLVM string.
fn literal(bytes: &[u8]) -> String {
    let mut text = String::from("c\"");
    for byte in bytes {
        let _ = write!(text, "\\{byte:02X}");
    }
    text + "\""
}
