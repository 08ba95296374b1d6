//! Instructions of a warp as they are decoded.

use crate::matrix::{Fragment, Product};
use crate::op::{Addr, Dst, Src};

/// A decoded instruction of a warp.
pub(crate) struct WarpOp {
    pub(crate) kind: WarpKind,
    /// The lanes that take part; all that are left where there is none.
    pub(crate) mask: Option<Src>,
    /// What each lane addresses; where there is one, it is the first of the lane's values.
    pub(crate) addr: Option<Addr>,
    pub(crate) src: Box<[Src]>,
    pub(crate) dst: Box<[Option<Dst>]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shuffle {
    Up,
    Down,
    Butterfly,
    Index,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Vote {
    All,
    Any,
    Uniform,
    Ballot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Redux {
    Add,
    Min,
    Max,
    And,
    Or,
    Xor,
}

/// What the lanes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarpKind {
    Barrier,
    Shuffle(Shuffle),
    Vote(Vote),
    Match {
        all: bool,
    },
    /// Whether the numbers are signed.
    Redux(Redux, bool),
    Elect,
    Product(Product),
    LoadMatrices {
        transposed: bool,
    },
    StoreMatrices {
        transposed: bool,
    },
    Transpose,
    LoadFragment(Fragment),
    StoreFragment(Fragment),
}
