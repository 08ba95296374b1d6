//! runtime/server
