//! runtime/engine
