//! runtime/protocol
