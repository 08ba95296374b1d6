//! Decoded warp instructions.

use crate::matrix::{Fragment, Product};
use crate::op::{Addr, Dst, Src};

/// A decoded warp instruction.
pub(crate) struct WarpOp {
    pub(crate) kind: WarpKind,
    /// The member mask; `None` for all lanes that have not exited.
    pub(crate) mask: Option<Src>,
    /// The address of each lane; if there is one, it is the first of the lane's values.
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

/// The operation of a warp instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WarpKind {
    Barrier,
    Shuffle(Shuffle),
    Vote(Vote),
    Match {
        all: bool,
    },
    /// The operation, and whether the numbers are signed.
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
