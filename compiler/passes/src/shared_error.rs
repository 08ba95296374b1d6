//! Why shared variables are not moved.

use atoll_ptx::Name;

/// Why a shared variable cannot be moved.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SharedError {
    /// The array is defined in another module.
    #[error("the shared variable `{0}` is external and has a size: link the modules first")]
    External(Name),
    /// The size is unknown or at least 4 GiB.
    #[error("the size of the shared variable `{0}` is not known")]
    Size(Name),
    /// An operand that cannot contain an offset.
    #[error(
        "line {line}: the address of the shared variable `{variable}` occurs in a vector or an \
         argument list; move it to a register first"
    )]
    Operand {
        /// The variable.
        variable: Name,
        /// The line.
        line: u32,
    },
    /// An initialiser cannot hold an offset into dynamic memory.
    #[error("the variable `{0}` is initialised with the address of a shared variable")]
    Initializer(Name),
    /// A directive at module scope that the pass does not examine, such as a debug section, names
    /// the variable.
    #[error("the shared variable `{0}` is named by a directive of the module")]
    Section(Name),
    /// A dynamic array cannot be moved, so nothing can be placed before it.
    #[error("the shared variable `{variable}` stays, because the dynamic array `{array}` cannot start behind it")]
    InFrontOf {
        /// The variable.
        variable: Name,
        /// The dynamic array.
        array: Name,
    },
}
