//! Checks of the PTX language for fuzzing, and mutations of real texts.
//!
//! The inputs come from bolero: as ordinary tests they run briefly; `tools/fuzz.sh SECONDS` runs
//! them longer, with a memory limit.

use atoll_ptx::analysis::{Cfg, Code, DefUse, DominatorTree, Liveness, Loops};
use atoll_ptx::{Body, ItemKind, Module, StatementKind, parse, print, verify};

/// Real texts to mutate: small ones of every compiler.
pub const SEEDS: [&str; 10] = [
    include_str!("../../../compiler/ptx/tests/corpus/branches.ptx"),
    include_str!("../../../compiler/ptx/tests/corpus/calls.ptx"),
    include_str!("../../../compiler/ptx/tests/corpus/debug.ptx"),
    include_str!("../../../compiler/ptx/tests/corpus/forms.ptx"),
    include_str!("../../../compiler/ptx/tests/corpus/gemm.ptx"),
    include_str!("../../../compiler/ptx/tests/corpus/nested.ptx"),
    include_str!("../../../compiler/ptx/tests/corpus/nvrtc.ptx"),
    include_str!("../../../compiler/ptx/tests/corpus/vectors.ptx"),
    include_str!("../../kernels/ptx/triton_add.triton.ptx"),
    include_str!("../../kernels/ptx/triton_sum.triton.ptx"),
];

/// Fragments that are meaningful in PTX.
const WORDS: [&str; 40] = [
    "{",
    "}",
    "(",
    ")",
    "[",
    "]",
    ";",
    ",",
    ":",
    "<",
    ">",
    "|",
    "!",
    "@",
    "@!",
    "+",
    "-",
    "_",
    ".",
    "%p1",
    "%r99999",
    "0x",
    "0f3F800000",
    "0d",
    "1e999",
    "99999999999999999999999999",
    "-0x8000000000000000",
    ".reg .b32 %r<4294967295>;",
    ".entry",
    ".func",
    ".param .align 1024 .b8 p[4]",
    ".branchtargets",
    "/*",
    "//",
    "\"",
    "generic(",
    "$L__BB0_2:",
    "call (%r1), f, (%r2);",
    "bra $L__BB0_2;",
    "\u{0}",
];

/// One change of a text.
#[derive(Clone, Copy, Debug)]
pub struct Change {
    /// The kind of change, modulo the number of kinds.
    pub kind: u8,
    /// The position, as a share of the text.
    pub at: u16,
    /// The amount or the index.
    pub amount: u16,
}

/// Applies changes to a text; the result is valid UTF-8.
pub fn mutate(seed: &str, changes: &[Change]) -> String {
    let mut bytes = seed.as_bytes().to_vec();
    for change in changes {
        let at = bytes.len() * usize::from(change.at) / (usize::from(u16::MAX) + 1);
        let end = (at + usize::from(change.amount) % 200 + 1).min(bytes.len());
        match change.kind % 6 {
            0 => drop(bytes.drain(at..end)),
            1 => {
                let piece = bytes[at..end].to_vec();
                bytes.splice(at..at, piece);
            }
            2 => drop(bytes.splice(at..at, WORDS[usize::from(change.amount) % WORDS.len()].bytes())),
            3 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = change.amount as u8;
                }
            }
            4 => {
                let other = bytes.len() * usize::from(change.amount) / (usize::from(u16::MAX) + 1);
                let length = (bytes.len() - at.max(other)).min(60);
                let piece = bytes[other..other + length].to_vec();
                bytes.splice(at..at + length, piece);
            }
            _ => bytes.truncate(at.max(bytes.len() / 2)),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Parses a text. A valid one must print unchanged, also in canonical form, and pass the verifier
/// and every analysis without a panic.
///
/// # Panics
/// If any of that does not hold.
pub fn exercise(text: &str) {
    let Ok(module) = parse(text) else { return };
    let printed = print(&module);
    assert!(printed == text, "a text is not printed unchanged: {}", first_difference(text, &printed));
    if !keeps_words(&module) {
        let mut canonical = module.clone();
        canonical.strip_origins();
        let printed = print(&canonical);
        let mut again = parse(&printed)
            .unwrap_or_else(|error| panic!("the canonical form is not valid PTX: {error}\n{printed}\nof\n{text}"));
        again.strip_origins();
        assert!(again == canonical, "the canonical form says something else");
    }
    let _ = verify(&module);
    analyse(&module);
}

/// The position of the first difference of two texts, with its surroundings.
fn first_difference(expected: &str, found: &str) -> String {
    let at = expected.bytes().zip(found.bytes()).take_while(|(a, b)| a == b).count();
    let around = |text: &str| {
        String::from_utf8_lossy(&text.as_bytes()[at.saturating_sub(80)..text.len().min(at + 40)]).into_owned()
    };
    format!("from byte {at} on: {:?} instead of {:?}", around(found), around(expected))
}

/// Whether there are unknown directives. They are kept verbatim, with their layout, and have no
/// canonical form.
fn keeps_words(module: &Module) -> bool {
    const KNOWN: [&str; 4] = ["version", "target", "address_size", "file"];
    module.items.iter().any(|item| match &item.kind {
        ItemKind::Directive(directive) => !KNOWN.contains(&directive.name.as_str()),
        ItemKind::Function(function) => function.body.as_ref().is_some_and(body_keeps_words),
        ItemKind::Variable(_) => false,
    })
}

fn body_keeps_words(body: &Body) -> bool {
    body.statements.iter().any(|statement| match &statement.kind {
        StatementKind::Directive(directive) => !["loc", "pragma"].contains(&directive.name.as_str()),
        StatementKind::Block(inner) => body_keeps_words(inner),
        _ => false,
    })
}

fn analyse(module: &Module) {
    for function in module.functions() {
        let code = Code::of(function);
        DefUse::of(&code);
        if let Ok(cfg) = Cfg::of(&code) {
            let dominators = DominatorTree::dominators(&cfg);
            DominatorTree::postdominators(&cfg);
            Loops::of(&cfg, &dominators);
            let _ = Liveness::of(&code, &cfg);
        }
    }
}
