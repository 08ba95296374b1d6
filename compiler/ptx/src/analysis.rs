//! Analyses of one function.
//!
//! ```
//! use atoll_ptx::analysis::{Cfg, Code, DominatorTree, Liveness, Loops};
//! # let module = atoll_ptx::parse(".version 7.0\n.target sm_80\n.address_size 64\n.entry k() { ret; }").unwrap();
//! let function = module.function("k").unwrap();
//! let code = Code::of(function); // statements and registers, nested blocks flattened
//! let cfg = Cfg::of(&code)?;                           // basic blocks and edges
//! let dominators = DominatorTree::dominators(&cfg);
//! let loops = Loops::of(&cfg, &dominators);
//! let live = Liveness::of(&code, &cfg)?;
//! assert!(loops.is_reducible() && live.live_in(cfg.entry()).next().is_none());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! The analyses read the tree and never change it. Recompute them after a change of the tree.

mod cfg;
mod code;
mod def_use;
mod dominators;
mod entity;
mod liveness;
mod loops;

pub use cfg::{BasicBlock, BlockId, Cfg, CfgError, Edge, When};
pub use code::{Access, Code, Register, RegisterId, ScopeId, StatementId};
pub use def_use::DefUse;
pub use dominators::DominatorTree;
pub use liveness::Liveness;
pub use loops::{Loop, LoopId, Loops};
