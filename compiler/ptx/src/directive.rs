//! The directives whose form the tree knows. All others are kept as words.

/// The arguments of a known directive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arguments {
    /// No arguments.
    None,
    /// Exactly one token.
    One,
    /// One or more tokens, separated by commas that the tree leaves out.
    List,
}

/// A known directive.
#[derive(Debug)]
pub(crate) struct DirectiveForm {
    name: &'static str,
    /// The arguments after the name.
    pub(crate) arguments: Arguments,
    /// Whether it ends with `;`.
    pub(crate) semicolon: bool,
}

const fn form(name: &'static str, arguments: Arguments, semicolon: bool) -> DirectiveForm {
    DirectiveForm { name, arguments, semicolon }
}

/// One row per known directive (ISA chapter 11).
const FORMS: &[DirectiveForm] = &[
    form("version", Arguments::One, false),
    form("target", Arguments::List, false),
    form("address_size", Arguments::One, false),
    form("alias", Arguments::List, true),
    form("pragma", Arguments::List, true),
    form("maxnreg", Arguments::One, false),
    form("maxntid", Arguments::List, false),
    form("reqntid", Arguments::List, false),
    form("minnctapersm", Arguments::One, false),
    form("maxnctapersm", Arguments::One, false),
    form("noreturn", Arguments::None, false),
    form("abi_preserve", Arguments::One, false),
    form("abi_preserve_control", Arguments::One, false),
    form("reqnctapercluster", Arguments::List, false),
    form("explicitcluster", Arguments::None, false),
    form("maxclusterrank", Arguments::One, false),
    form("blocksareclusters", Arguments::None, false),
];

/// The form of a directive; `None` for an unknown directive, which is kept as words.
pub(crate) fn form_of(name: &str) -> Option<&'static DirectiveForm> {
    FORMS.iter().find(|form| form.name == name)
}
