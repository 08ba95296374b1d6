//! Typed indices into the arenas of the analyses.

/// Defines a dense index into one of the arenas.
macro_rules! entity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// The id of an index.
            pub fn new(index: usize) -> $name {
                // `MAX_SOURCE_BYTES` keeps every arena far below 2³² entries.
                $name(index as u32)
            }

            /// The index.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
pub(super) use entity;
