//! Sessions: the calls of a CUDA program, recorded where the program runs and replayed where the
//! device is.
//!
//! A program calls the driver API. Calls that return no result (launches, copies to the device,
//! fills, events) are appended to a buffer. Calls whose result the client knows (allocations,
//! handles, facts about the device) return at once. The client sends the buffer and waits for an
//! answer only when a call needs data from the server.
//!
//! | file | contents |
//! |---|---|
//! | [`limits`] | every limit of the protocol |
//! | `address` | [`Address`]: where a server listens and a client connects |
//! | `code` | [`Code`]: an error of the driver by its number |
//! | `field`, `record`, `frame` | the encoding: fields, [`Record`]s, frames around them |
//! | `facts` | [`DeviceFacts`] and [`KernelFacts`], which the client learns once |
//! | `terms` | [`Terms`]: class, memory and share that a client asks for |
//! | `arena`, `ranges` | the client's allocator, and the memory that exists |
//! | `recorder` | [`Recorder`]: the buffer of a client; [`Wait`]: the calls that send it |
//! | `client` | [`Client`]: addresses, handles, and the calls of a program |
//! | `graph` | [`Graphs`]: graphs of calls, captures, and executable graphs of a program |
//! | `channel` | [`Channel`]: the bytes of a session over connections that break |
//! | `ticket` | [`Ticket`], [`Pass`], [`Resume`]: how a session continues on another connection |
//! | `transport` | [`Transport`]: how a client sends and receives |
//! | `backend` | [`Backend`]: the device of a session |
//! | `replay` | [`Replayer`]: checks a message and carries it out |
//! | `stored` | messages that are sent again and again, kept on the server as stored functions |
//! | `refused` | [`Output`], [`Refused`]: where answers go, and why a session is ended |
//! | `image` | checks images of modules; [`ptx`]: the PTX of an image |
//! | `recording` | [`Recording`]: the calls of a session in a file; [`Function`]: what it repeats |
//! | `occupancy` | occupancy of a kernel, computed from facts |
//!
//! What it is not: it opens no socket, starts no thread and calls no driver. `runtime/interpose`
//! has the entry points and the client's socket. `runtime/session-server` has a server's socket and
//! the backend on a CUDA driver; `runtime/server` has the sessions of the daemon, also over TCP.
//!
//! Invariants:
//! - An address that a client returns is the address on the device: the session's memory is one
//!   range, which the server reserves when the session begins and the client divides.
//! - Handles are numbers that the client assigns. They are never reused within a session.
//! - The server trusts nothing: a record that names freed memory, an unknown handle or a module
//!   that was never sent is a CUDA error. Bytes that are not a record end the session.
//! - An error of a recorded call is returned by the next call that waits, together with the call
//!   that caused it. An error that breaks the device's context is returned by every later call.
//!
//! Start reading at [`Record`], then [`Client`] and [`Replayer`].

#![forbid(unsafe_code)]

mod address;
mod arena;
mod backend;
mod channel;
mod client;
mod code;
mod facts;
mod field;
mod frame;
mod graph;
mod image;
pub mod limits;
mod occupancy;
mod ranges;
mod record;
mod recorder;
mod recording;
mod refused;
mod replay;
mod report;
mod stored;
mod terms;
mod ticket;
mod transport;

pub use address::{Address, AddressError};
pub use backend::{Backend, Launch, LoadFailure};
pub use channel::{Channel, ChannelError, SEGMENT_HEAD_BYTES};
pub use client::{Cause, Client, HostCopy, LoadError, MemoryKind};
pub use code::Code;
pub use facts::{DeviceFacts, KERNEL_ATTRIBUTES, KernelFacts};
pub use field::WireError;
pub use frame::{
    ANSWER_BYTES, Answer, ENTRY_BYTES, Entry, FRAME_BYTES, Frame, HELLO_BYTES, Hello, Kind, MAGIC, WELCOME_BYTES,
    Welcome,
};
pub use graph::{CaptureMode, CaptureStatus, Graphs, Mismatch, MismatchKind, Task};
pub use image::{NoPtx, ptx};
pub use occupancy::{active_blocks, available_shared, best_block};
pub use ranges::Span;
pub use record::{Record, records};
pub use recorder::{Recorder, Wait};
pub use recording::{
    Action, Buffer, Call, Function, Item, Kernel, Operation, Param, Pattern, Place, Recording, RecordingError, Role,
    Run, Step, Steps, Unstorable, Values, Writes, recording_head,
};
pub use refused::{Output, Refused};
pub use replay::Replayer;
pub use report::{Report, StoredCounts};
pub use stored::{KnownShape, Offer, Places};
pub use terms::{Terms, TermsError};
pub use ticket::{PASS_BYTES, PASS_MAGIC, Pass, RESUME_BYTES, RESUME_MAGIC, Resume, SECRET_BYTES, Ticket};
pub use transport::{Lost, Transport};
