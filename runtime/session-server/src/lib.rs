//! The server of sessions: sockets, one thread for each session, and the backend on a CUDA driver.
//!
//! | file | contents |
//! |---|---|
//! | `backend` | [`CudaBackend`]: a session on `runtime/cuda` |
//! | `outgoing` | the buffer of answers |
//! | `program` | [`environment`]: the variables by which a program finds library and server |
//! | `recording` | [`Recordings`]: the files into which sessions are recorded |
//! | `server` | [`Server`]: a listener, sessions and their ends; [`serve`]: one session |
//! | `stub` | libraries with the names of the runtime's versions |
//!
//! What it is not: it does not check records, which `runtime/session` does, and it does not
//! schedule: the driver shares the device between sessions.
//!
//! Invariants: each session has its own context, so a fault ends only one session. All that a
//! session has on the device is released when its connection ends. The socket accepts only clients
//! of the server's user and root. Clients of other machines connect to the daemon instead.
//!
//! Start reading at [`Server`].

mod backend;
mod outgoing;
mod program;
mod recording;
mod server;
mod stub;

pub use atoll_cuda::OpenError;
pub use backend::{CudaBackend, open};
pub use program::{BLAS, DNN, LIBRARY, Libraries, RUNTIME, STAND_IN, beside, environment};
pub use recording::Recordings;
pub use server::{Admission, Ended, Options, Server, StartError, other_version, serve};
