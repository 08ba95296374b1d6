//! compiler/passes
