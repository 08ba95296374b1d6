//! The server of sessions: sockets, a thread for each session, and the backend on a CUDA driver.
//!
//! | file | contents |
//! |---|---|
//! | `backend` | [`CudaBackend`]: a session on `runtime/cuda` |
//! | `connection` | a connected socket, and the buffer of answers |
//! | `program` | [`environment`]: in which a program finds the library and its server |
//! | `server` | [`Server`]: listeners, sessions and their ends |
//! | `stub` | the names of the runtime's versions |
//!
//! What it is not: it decides nothing about records, which `runtime/session` checks, and schedules
//! nothing: the driver shares the device between sessions.
//!
//! Invariants: each session has a context of its own, so a fault ends one session. All that a
//! session has on the device is released when its connection ends. A Unix socket takes only clients
//! of the server's own user; TCP is bound to loopback addresses only, since it is neither encrypted
//! nor authenticated.
//!
//! Start reading at [`Server`].

mod backend;
mod connection;
mod program;
mod server;
mod stub;

pub use atoll_cuda::OpenError;
pub use backend::{CudaBackend, open};
pub use program::{LIBRARY, RUNTIME, STAND_IN, beside, environment};
pub use server::{Ended, Options, Server, StartError};
