//! Directives of a module, and the layout of kernel parameters.

use atoll_ptx::{Function, ItemKind, Module};

/// `.version`, `.target` and `.address_size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dialect {
    /// `(7, 0)` for `.version 7.0`.
    pub(crate) version: (u32, u32),
    /// 80 for `sm_80`; [`u32::MAX`] for a target of another vendor, which counts as recent.
    pub(crate) sm: u32,
    /// 64 or 32.
    pub(crate) address_bits: u32,
}

impl Dialect {
    /// Reads the directives; a missing one counts as recent.
    pub(crate) fn of(module: &Module) -> Dialect {
        let argument = |name: &str| {
            module.items.iter().find_map(|item| match &item.kind {
                ItemKind::Directive(d) if d.name == name => Some(d.arguments.concat()),
                _ => None,
            })
        };
        let version = argument("version").and_then(|text| {
            let (major, minor) = text.split_once('.')?;
            Some((major.trim().parse().ok()?, minor.trim().parse().ok()?))
        });
        let digits = |text: String| {
            text.strip_prefix("sm_").map(|rest| rest.chars().take_while(char::is_ascii_digit).collect::<String>())
        };
        Dialect {
            version: version.unwrap_or((u32::MAX, 0)),
            sm: argument("target").and_then(digits).and_then(|text| text.parse().ok()).unwrap_or(u32::MAX),
            address_bits: argument("address_size").and_then(|text| text.parse().ok()).unwrap_or(64),
        }
    }

    /// Whether loads, stores and fences of the memory model (`ld.relaxed`, `fence.acq_rel`) are
    /// available.
    pub(crate) fn has_memory_model(self) -> bool {
        self.sm >= 70 && self.version >= (6, 0)
    }

    /// Whether threads may exit before a barrier and still be counted: barriers wait only for the
    /// remaining threads, and threads can query which others are active (`activemask`).
    pub(crate) fn counts_exits(self) -> bool {
        self.sm >= 70 && self.version >= (6, 2)
    }

    /// Limit on the parameters of a kernel in bytes (PTX ISA, "Kernel Function Parameters").
    pub(crate) fn params_bytes_max(self) -> u64 {
        if self.sm >= 70 && self.version >= (8, 1) { 32764 } else { 4096 }
    }
}

/// Bytes of a kernel's parameters, each at its natural alignment.
pub(crate) fn params_bytes(kernel: &Function) -> u64 {
    kernel.params.iter().fold(0, |end, param| {
        align_up(end, u64::from(param.alignment())).saturating_add(param.bytes().unwrap_or(u64::MAX))
    })
}

/// The next multiple of `alignment` at or after `offset`.
pub(crate) fn align_up(offset: u64, alignment: u64) -> u64 {
    offset.checked_next_multiple_of(alignment.max(1)).unwrap_or(u64::MAX)
}
