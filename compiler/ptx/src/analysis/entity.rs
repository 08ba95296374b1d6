//! Names of what analyses number.

/// A dense index into one of the analyses' arenas.
macro_rules! entity {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(u32);

        impl $name {
            /// The id of a position.
            pub fn new(index: usize) -> $name {
                // The parser's bound on a module keeps every arena far below 2³².
                $name(index as u32)
            }

            /// The position.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }
    };
}
pub(super) use entity;
